"""What a run shows while it goes, in a terminal and in a file."""

import io
import threading
from collections.abc import Mapping

import pytest
from rich.console import Console
from rich.text import Text

from headway.plan.ledger import Phase
from headway.reports.live import LiveView, PlainView, Progress, render, sparkline, step_line

GIB = 1 << 30
METRICS = {
    "step": 2.0, "reward": 0.5123, "reward_std": 0.3, "correct": 0.47, "answer_tokens": 23.14,
    "answer_truncated": 0.02, "rollout_tokens_per_s": 412.3, "train_tokens_per_s": 1203.4, "loss": 0.00123,
    "grad_norm": 0.834, "lr": 1e-5, "entropy": 0.0, "kl": 0.0012, "clip_fraction": 0.021, "seconds": 12.3,
    "memory_peak": 2.5 * GIB,
}  # fmt: skip


def progress_after(steps: int, *, total: int = 120, limit: int | None = 4 * GIB) -> Progress:
    """A run of ten seconds a step."""
    progress = Progress(total, limit, predicted=3 * GIB)
    for step in range(1, steps + 1):
        progress.take_phase(Phase.ROLLOUT, step, 10.0 * (step - 1))
        progress.take_step(METRICS | {"step": float(step), "reward": step / total}, 10.0 * step)
    return progress


def shown(progress: Progress, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(render(progress, width))
    return [line.rstrip() for line in console.export_text().splitlines()]


def row(lines: list[str], name: str) -> str:
    return next(line for line in lines if line.startswith(name))


def test_sparkline_follows_the_values() -> None:
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.2, 0.2, 0.2]) == "▁▁▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize("width", [80, 120])
def test_every_row_fits_and_says_its_part(width: int) -> None:
    progress = progress_after(60)
    progress.take_memory(2 * GIB)
    progress.take_phase(Phase.TRAIN, 61, 605.0)
    lines = shown(progress, width)
    assert len(lines) == 6
    assert not any("…" in line for line in lines)
    assert "60/120 done, train of step 61, 10 min 0 s left" in row(lines, "step")
    assert "0.500, correct 0.470" in row(lines, "reward")
    assert row(lines, "answers") == "answers 23.1 tokens, 2% cut off"
    assert row(lines, "speed") == "speed   rollout 412 tok/s, train 1,203 tok/s, 12.3 s a step"
    assert row(lines, "policy") == "policy  loss 0.0012, grad 0.83, lr 1.0e-05, kl 0.0012, clip 2.1%"
    assert "2,048 of 4,096 MiB, peak 2,560, predicted 3,072" in row(lines, "memory")


@pytest.mark.parametrize("width", [40, 60])
def test_narrow_rows_fold_and_lose_nothing(width: int) -> None:
    progress = progress_after(60)
    progress.take_memory(2 * GIB)
    lines = shown(progress, width)
    text = " ".join(" ".join(lines).split())
    assert "…" not in text
    assert all(len(line) <= width for line in lines)
    assert "train 1,203 tok/s" in text
    assert "predicted 3,072" in text


def test_failed_rewards_are_told_in_both_views() -> None:
    progress = progress_after(3)
    assert "failed" not in step_line(progress)
    progress.take_step(METRICS | {"reward_failures": 1234.0}, 40.0)
    assert "1,234 rewards failed" in step_line(progress)
    assert row(shown(progress, 80), "answers").endswith("1,234 rewards failed")


def test_groups_with_equal_rewards_and_a_step_without_training_are_explained() -> None:
    progress = progress_after(3)
    assert "equal" not in step_line(progress)
    progress.take_step(METRICS | {"frac_reward_zero_std": 0.25, "trained_tokens": 900.0}, 40.0)
    assert "25% of groups with equal rewards" in step_line(progress)
    assert "25% of groups with equal rewards" in row(shown(progress, 120), "reward")
    assert "train 1,203/s  kl" in step_line(progress)
    nothing = {"frac_reward_zero_std": 1.0, "trained_tokens": 0.0, "train_tokens_per_s": 0.0}
    progress.take_step(METRICS | nothing, 50.0)
    assert "train 0/s (all groups had equal rewards: nothing to learn from)" in step_line(progress)
    penalty_trains = nothing | {"trained_tokens": 900.0, "train_tokens_per_s": 90.0}
    progress.take_step(METRICS | penalty_trains, 60.0)
    assert "nothing to learn from" not in step_line(progress)


def test_a_step_without_any_reward_has_a_line() -> None:
    progress = progress_after(3)
    unscored = {name: value for name, value in METRICS.items() if not name.startswith(("reward", "correct"))}
    progress.take_step(unscored | {"reward_failures": 64.0}, 40.0)
    assert "reward -  23.1 tokens" in step_line(progress)
    assert "64 rewards failed" in step_line(progress)
    assert row(shown(progress, 80), "reward").endswith(" -")


def test_memory_bar_is_drawn_to_scale() -> None:
    """24 cells for 4 GiB: 2 GiB now fill 12, the peak of 2.5 GiB 15, and 3 GiB predicted are marked at 18."""
    progress = progress_after(1)
    progress.take_memory(2 * GIB)
    bar = row(shown(progress, 80), "memory").removeprefix("memory  ")[:24]
    assert bar == "█" * 12 + "▒" * 3 + "···" + "│" + "·····"


def test_memory_without_a_limit_or_a_reading() -> None:
    line = row(shown(Progress(10, None, predicted=GIB), 80), "memory")
    assert line.endswith("- MiB, peak ·, predicted 1,024")


def test_time_left_goes_by_the_last_steps() -> None:
    progress = progress_after(20, total=30)
    for step in range(21, 26):
        progress.take_step(METRICS | {"step": float(step)}, 200.0 + 100.0 * (step - 20))
    # five steps of 10 s and five of 100 s: 55 s a step, five to go
    assert progress.seconds_left() == 5 * 55.0


def test_a_resumed_run_knows_what_is_done() -> None:
    progress = Progress(30, None, predicted=GIB)
    assert progress.seconds_left() is None
    progress.take_phase(Phase.LOAD, 0, 0.0)
    progress.take_phase(Phase.TRAIN, 13, 5.0)
    assert "12/30 done, train of step 13" in row(shown(progress, 80), "step")
    progress.take_step(METRICS | {"step": 13.0}, 7.0)
    assert progress.seconds_left() == 17 * 2.0


def test_plain_view_writes_a_line_a_step_and_one_an_evaluation() -> None:
    stream = io.StringIO()
    with PlainView(stream, 2, limit=4 * GIB, predicted=3 * GIB) as view:
        view.message("resuming from step-1")
        view.phase(Phase.ROLLOUT, 2)
        view.memory(GIB)
        view.step(METRICS)
        view.evaluation(2, {"reward": 0.25, "correct": 0.25, "problems": 200.0, "pass@4": 0.5, "answer_tokens": 9.0})
    assert stream.getvalue().splitlines() == [
        "resuming from step-1",
        "step 2/2  reward 0.512  correct 0.470  23.1 tokens  2% cut off  rollout 412/s  train 1,203/s  "
        "kl 0.0012  clip 2.1%  12.3 s  2.50 GiB",
        "evaluation after 2 steps: correct 0.250, pass@4 0.500, 200 problems, 9.0 tokens",
    ]


def test_plain_line_of_a_run_without_extras_is_short() -> None:
    calm: Mapping[str, float] = METRICS | {"kl": 0.0, "clip_fraction": 0.0, "answer_truncated": 0.0}
    progress = progress_after(60)
    progress.take_step(calm, 600.0)
    assert len(step_line(progress)) <= 120
    assert "kl" not in step_line(progress)


def test_live_view_redraws_below_what_scrolls_by() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, color_system=None)
    with LiveView(console, 3, limit=4 * GIB, predicted=3 * GIB) as view:
        view.phase(Phase.LOAD, 0)
        view.message("a note in [brackets]")
        for step in (1, 2, 3):
            view.phase(Phase.ROLLOUT, step)
            view.step(METRICS | {"step": float(step)})
        view.evaluation(3, {"reward": 0.75, "correct": 0.75})
    text = Text.from_ansi(stream.getvalue()).plain
    assert "a note in [brackets]" in text
    assert "evaluation after 3 steps: correct 0.750" in text
    last = text.rindex("3/3 done")
    assert text.index("a note") < text.index("evaluation after") < last
    assert "held out 0.750 at 3" in text[last:]


def test_live_view_takes_readings_from_another_thread() -> None:
    """Steps and readings at once, while the view redraws: nothing is lost and no thread dies."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80)
    view = LiveView(console, 500, limit=None, predicted=GIB)
    readings = threading.Thread(target=lambda: [view.memory(size << 20) for size in range(1, 2001)])
    with view:
        readings.start()
        for step in range(1, 501):
            view.step(METRICS | {"step": float(step), "memory_peak": 0.0})
            if step % 100 == 0:
                view.message(f"at {step}")
        readings.join()
    output = Text.from_ansi(stream.getvalue()).plain
    assert "500/500 done" in output
    assert "2,000 MiB, peak 2,000, predicted 1,024" in output
