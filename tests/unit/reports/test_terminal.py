"""The plan, the comparison and the end of a run as a terminal shows them."""

import io
import re
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType

from headway.facts.machine import Limit, Machine, Pool
from headway.guard.recorder import PhasePeak
from headway.plan.ledger import Ledger, Line, Phase, Quantity
from headway.plan.verdict import verdict
from headway.reports.ledger import ledger_table, refusal
from headway.reports.terminal import comparison_table, final_summary, pool_comparison
from headway.reports.widgets import Bar, Unit

MIB, GIB = 1 << 20, 1 << 30
HOST, DEVICE = "node[0].host", "node[0].device[0]"


def line(item: str, phase: Phase, size: int, upper: int | None = None, role: str = "trainer") -> Line:
    return Line(HOST, phase, role, 0, item, size, upper or size, "host", f"{size} bytes", "a test")


LEDGER = Ledger(
    (
        line("weights", Phase.ROLLOUT, 1000 * MIB), line("weights", Phase.TRAIN, 1000 * MIB),
        line("KV cache", Phase.ROLLOUT, 500 * MIB, 600 * MIB, "engine"),
        line("activations", Phase.TRAIN, 2000 * MIB, 2200 * MIB), line("gradients", Phase.TRAIN, 40 * MIB),
        line("rollout data", Phase.TRAIN, 1),
    ),
    {Phase.ROLLOUT: 1, Phase.TRAIN: 2},
)  # fmt: skip


def machine(limit: int) -> Machine:
    limits = (
        Limit("MemAvailable", 16 * GIB, "the kernel kills", "/proc/meminfo"),
        Limit("memory.limit", limit, "headway does not start the run", "RunSpec"),
    )
    return Machine("a", (Pool(HOST, "host", 24 * GIB, limits),), 2)


def shown(what: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(what)
    return [text.rstrip() for text in console.export_text().splitlines()]


def row(lines: list[str], name: str) -> str:
    return next(text for text in lines if text.startswith(name))


def words(lines: list[str], name: str) -> str:
    return " ".join(row(lines, name).split())


@pytest.mark.parametrize(
    ("bar", "text"),
    [
        (Bar(4, 6, None, 10), "████▒▒····"),
        (Bar(4, 6, 8, 10), "████▒▒··│·"),
        (Bar(10, 12, 10, 10), "██████████"),
        (Bar(9, 10, 5, 10), "█████│███▒"),
        (Bar(0, 0, None, 10), "··········"),
        (Bar(1, 1, None, 10000), "█·········"),
        (Bar(0, 0, None, 0), "··········"),
    ],
)
def test_bar(bar: Bar, text: str) -> None:
    assert bar.text(10).plain == text


def test_unit_of_small_and_large_tables() -> None:
    assert [Unit.for_size(GIB).text(size) for size in (0, 1, 1536 * MIB)] == ["·", "<1", "1,536"]
    assert [Unit.for_size(80 * GIB).text(size) for size in (0, MIB, 1536 * MIB)] == ["·", "<0.01", "1.50"]


def test_ledger_table_has_items_by_phase_and_their_sums() -> None:
    lines = shown(ledger_table(LEDGER, machine(4 * GIB)))
    assert words(lines, "MiB") == "MiB rollout train"
    assert words(lines, "activations") == "activations · 2,000"
    assert words(lines, "KV cache") == "KV cache 500 ·"
    assert words(lines, "rollout data") == "rollout data · <1"
    assert words(lines, "expected") == "expected 1,500 3,040"
    assert words(lines, "upper bound") == "upper bound 1,600 3,240"


def test_ledger_table_marks_the_worst_phase_against_the_lowest_limit() -> None:
    lines = shown(ledger_table(LEDGER, machine(4 * GIB)))
    assert "of 4.00 GiB memory.limit" in row(lines, "        expected")
    worst = next(text for text in lines if "◀" in text)
    assert worst.startswith("train")
    assert worst.endswith("74% to 79% ◀ worst, from step 2")
    limits = [text.split()[-8:] for text in lines if "GiB  " in text]
    assert row(lines, "limit").startswith("limit  memory.limit  4.00 GiB")
    assert limits[-1][-1] == "kills"


def test_small_items_share_a_row_and_the_sums_still_hold() -> None:
    many = tuple(line(f"item {index}", Phase.TRAIN, (20 - index) * MIB) for index in range(12))
    lines = shown(ledger_table(Ledger(many, {Phase.TRAIN: 1}), machine(GIB)))
    assert row(lines, "4 smaller").split()[-1] == str(12 + 11 + 10 + 9)
    assert row(lines, "expected").split()[-1] == str(sum(range(9, 21)))


def test_an_item_of_two_roles_names_them() -> None:
    both = (line("weights", Phase.TRAIN, 5 * MIB), line("weights", Phase.TRAIN, 3 * MIB, role="engine"))
    lines = shown(ledger_table(Ledger(both, {Phase.TRAIN: 1}), machine(GIB)))
    assert row(lines, "weights (trainer)").split()[-1] == "5"
    assert row(lines, "weights (engine)").split()[-1] == "3"


def test_a_pool_that_the_machine_lacks_is_said() -> None:
    lines = shown(ledger_table(LEDGER, Machine("a", (), 2)))
    assert lines[0] == "Plan for node[0].host, which is not on this machine"


def test_the_title_names_the_memory_in_80_columns() -> None:
    lines = shown(ledger_table(LEDGER, machine(4 * GIB)))
    assert lines[0] == "Plan for this machine's memory (node[0].host), 24.00 GiB in all"
    device = Ledger(
        (Line(DEVICE, Phase.TRAIN, "trainer", 0, "weights", MIB, MIB, "allocated", "", ""),), {Phase.TRAIN: 1}
    )
    here = Machine("a", (Pool(DEVICE, "device", 139 * GIB, ()),), 2)
    title = "Plan for this machine's device memory (node[0].device[0]), 139.00 GiB in all"
    assert shown(ledger_table(device, here))[0] == title


WIDE = Ledger(
    tuple(
        line(f"{item} with a long name of its own", phase, (index + 1) * 1111 * MIB, role="engine")
        for index, item in enumerate(("weights", "cache", "gradients", "moments"))
        for phase in Phase
    ),
    dict.fromkeys(Phase, 1),
)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("scale", [1, 1000, 10**12])
def test_numbers_are_whole_at_every_width(width: int, scale: int) -> None:
    ledger = Ledger(
        tuple(replace(each, bytes=each.bytes * scale, upper=each.upper * scale) for each in WIDE.lines),
        WIDE.first_step,
    )
    here = machine(4 * GIB)
    measured = {phase.value: {"measured_bytes": 3333 * MIB} for phase in Phase}
    told = summary(phases=measured, peak_measured_bytes=3333 * MIB)  # far below the plan where that is scaled up
    unit = Unit.for_size(ledger.upper(HOST))
    for what in (ledger_table(ledger, here, verdict(ledger, here)), comparison_table(ledger, told)):
        lines = shown(what, width)
        assert all(len(text) <= width for text in lines)
        assert not any(re.search(r"[\d,.]…", text) for text in lines)
        assert any(unit.text(11110 * MIB * scale) in text.split() for text in lines)


def test_a_narrow_plan_has_a_line_a_phase_and_the_largest_items() -> None:
    lines = shown(ledger_table(LEDGER, machine(4 * GIB)), 40)
    assert words(lines, "MiB") == "MiB expected upper share"
    assert words(lines, "train") == "train 3,040 3,240 74%"
    assert "2,000  activations (train)" in lines
    assert "500  KV cache (rollout)" in lines
    assert not any("gradients" in text for text in lines)
    assert "4.00 GiB  memory.limit (headway does not" in lines


def test_a_narrow_comparison_tells_what_is_over_the_upper_bound() -> None:
    lines = shown(comparison_table(LEDGER, summary()), 40)
    assert words(lines, "rollout ") == "rollout 1,500 1,700 -11.8%"
    assert "rollout: over the upper bound, 1,600" in lines


def test_very_large_sizes_have_a_larger_unit() -> None:
    assert [Unit.for_size(size << 30).name for size in (16, 16 << 10, 16 << 20, 16 << 30)] == [
        "GiB",
        "TiB",
        "PiB",
        "EiB",
    ]
    assert Unit.for_size(10**15 * MIB).text(10**15 * MIB) == "909.49"


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("limit", "sentence"), [(4 * GIB, "Fits: train, from step 2,"), (2 * GIB, "Does not fit: train, from step 2,")]
)
def test_verdict_is_a_sentence(width: int, limit: int, sentence: str) -> None:
    here = machine(limit)
    lines = shown(ledger_table(LEDGER, here, verdict(LEDGER, here)), width)
    assert any(text.startswith(sentence) for text in lines)
    assert all(len(text) <= width for text in lines)


def test_refusal_names_pool_limit_phase_largest_lines_and_what_to_set() -> None:
    text = refusal(LEDGER, verdict(LEDGER, machine(2 * GIB)), ["train.cap = 512: 1.50 GiB, which fits"])
    assert text.splitlines() == [
        "the plan does not fit in node[0].host: 2.97 GiB expected, 2.00 GiB allowed by memory.limit",
        "worst phase: train, from step 2; its largest lines:",
        f"     1.95 GiB  activations  = {2000 * MIB} bytes",
        f"   1000.0 MiB  weights  = {1000 * MIB} bytes",
        f"     40.0 MiB  gradients  = {40 * MIB} bytes",
        "set instead:",
        "  train.cap = 512: 1.50 GiB, which fits",
        "or start it all the same with --force",
    ]


def test_refusal_says_where_nothing_makes_it_fit() -> None:
    verdicts = verdict(LEDGER, machine(2 * GIB))
    lines = refusal(LEDGER, verdicts, ["set train.cap = 512: 2.97 GiB -> 2.50 GiB"]).splitlines()
    assert lines[-2] == "none of these makes it fit; take a smaller model"
    assert "no setting makes it fit; take a smaller model" in refusal(LEDGER, verdicts, [])


def summary(**changed: Any) -> dict[str, Any]:
    return {
        "steps": 60, "seconds": 312.4, "exit_reason": "finished", "eval_before": {"reward": 0.25, "correct": 0.25},
        "eval_after": {"reward": 0.625, "correct": 0.625}, "peak_predicted_bytes": 3040 * MIB,
        "peak_measured_bytes": 2900 * MIB,
        "phases": {
            "rollout": {"measured_bytes": 1700 * MIB}, "train": {"measured_bytes": 2900 * MIB},
        },
        "output": "runs/demo",
    } | changed  # fmt: skip


def test_comparison_has_the_error_and_marks_what_is_over_the_upper_bound() -> None:
    lines = shown(comparison_table(LEDGER, summary()))
    assert words(lines, "rollout") == "rollout 1,500 1,700 -11.8% 1,600 over the upper bound"
    assert words(lines, "train") == "train 3,040 2,900 +4.8% 3,240 within"
    assert words(lines, "whole run") == "whole run 3,040 2,900 +4.8% 3,240 within"


def test_comparison_without_a_measurement() -> None:
    phases = {"train": {"measured_bytes": 2900 * MIB}, "rollout": {"measured_bytes": None}}
    lines = shown(comparison_table(LEDGER, summary(phases=phases)))
    assert words(lines, "rollout") == "rollout 1,500 - - 1,600 not reached"


@pytest.mark.parametrize(
    ("quantities", "measured"),
    [(("allocated",), "100"), (("allocated", "reserved"), "200"), (("allocated", "device_used"), "300")],
)
def test_a_device_is_compared_by_the_quantity_that_was_planned(
    quantities: tuple[Quantity, ...], measured: str
) -> None:
    lines = tuple(
        Line(DEVICE, Phase.TRAIN, "trainer", 0, f"item {quantity}", MIB, MIB, quantity, "", "")
        for quantity in quantities
    )
    device = {"allocated": 100 * MIB, "reserved": 200 * MIB, "device_used": 300 * MIB}
    peak = PhasePeak(Phase.TRAIN, 1, 1, 1.0, GIB, 0, GIB, None, None, device, sampled=False)
    table = shown(pool_comparison(Ledger(lines, {Phase.TRAIN: 1}), DEVICE, {Phase.TRAIN: peak}))
    assert row(table, "train").split()[2] == measured
    assert row(table, "whole run").split()[3] == measured


def test_final_summary_of_a_finished_run() -> None:
    lines = shown(final_summary(summary()))
    assert row(lines, "run") == "run       60 steps in 5 min 12 s, finished"
    assert row(lines, "held out") == "held out  correct 0.250 before, 0.625 after, +0.375"
    assert row(lines, "memory") == "memory    peak 2.83 GiB measured, 2.97 GiB predicted"
    assert any(text.strip().startswith("final ") for text in lines)


def test_final_summary_of_a_run_that_was_stopped() -> None:
    stopped = summary(exit_reason="SIGTERM", eval_after=None)
    lines = shown(final_summary(stopped))
    assert row(lines, "run").endswith("stopped by SIGTERM; the same command resumes")
    assert row(lines, "held out") == "held out  correct 0.250 before"
    assert not any(text.strip().startswith("final ") for text in lines)


def test_final_summary_of_several_samples_shows_pass_at_k() -> None:
    before = {"reward": 0.25, "correct": 0.25, "pass@4": 0.5}
    after = {"reward": 0.5, "correct": 0.5, "pass@4": 0.75}
    lines = shown(final_summary(summary(eval_before=before, eval_after=after)), 120)
    assert "pass@4 0.500 before, 0.750 after, +0.250" in row(lines, "held out")


def test_rewards_beyond_0_to_1_are_called_rewards() -> None:
    told = summary(eval_before={"reward": -0.4}, eval_after={"reward": 1.25})
    assert row(shown(final_summary(told)), "held out") == "held out  reward -0.400 before, 1.250 after, +1.650"
    partial = summary(eval_before={"reward": 0.5, "correct": 0.25}, eval_after=None)
    assert row(shown(final_summary(partial)), "held out") == "held out  correct 0.250 before; reward 0.500 before"


def test_final_summary_of_failed_rewards_says_so_and_leads_to_the_log() -> None:
    failed = summary(exit_reason="failed rewards", problem="why", eval_before=None, eval_after=None)
    lines = shown(final_summary(failed))
    assert row(lines, "run").endswith("stopped: most answers could not be scored")
    assert any(text.strip().startswith("reward.log ") for text in lines)
    assert not any("finished" in text or "checkpoints" in text for text in lines)


def test_final_summary_of_a_full_disk_is_not_of_failed_rewards() -> None:
    lines = shown(
        final_summary(summary(exit_reason="full disk", problem="why", eval_before=None, eval_after=None)), 120
    )
    assert row(lines, "run").endswith("stopped: the disk is full; the same command resumes once there is room")
    assert any("checkpoints" in text for text in lines)
    assert not any("reward.log" in text or text.startswith("next") for text in lines)


def test_final_summary_of_a_finished_run_leads_to_its_page_and_its_model() -> None:
    lines = shown(final_summary(summary()), 120)
    output = summary()["output"]
    assert row(lines, "next") == f"next      headway report {output}; headway export {output} MY-MODEL"


def test_final_summary_tells_of_failed_rewards_and_dropped_prompts() -> None:
    first = "exception: ZeroDivisionError: division by zero (mine.py:2)"
    told = summary(
        reward_failures={"timeout": 1, "exception": 4},
        first_reward_failure=first,
        dropped_long_prompts=12,
        dropped_samples=3,
    )
    lines = shown(final_summary(told), 140)
    assert (
        row(lines, "reward failures") == f"reward failures  exception 4, timeout 1 (first: {first}; see reward.log)"
    )
    assert row(lines, "dropped prompts") == "dropped prompts  12 longer than data.max_prompt"
    assert row(lines, "dropped samples") == "dropped samples  3 for which there was no memory"
    calm = shown(final_summary(summary(reward_failures={}, dropped_samples=0, dropped_long_prompts=0)))
    assert not any(text.startswith(("reward failures", "dropped")) for text in calm)


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_final_summary_cuts_nothing(width: int) -> None:
    lines = shown(final_summary(summary(output="runs/a-name-that-is-longer-than-its-column-is-wide")), width)
    assert not any("…" in text for text in lines)
    assert any(text.strip().startswith("rollouts.jsonl ") for text in lines)


def test_final_summary_without_evaluation() -> None:
    assert row(shown(final_summary(summary(eval_before=None, eval_after=None))), "held out").endswith("no evaluation")
