"""What `headway plan` prints: bars of parts against limits, sums, verdicts, in any width, without colour."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console, RenderableType

from headway.facts import machines, shapes
from headway.facts.machine import Limit, Machine, Pool
from headway.foreign import presets
from headway.plan.ledger import Ledger, Line, Phase
from headway.plan.plan import plan
from headway.plan.planned import NO_ADVICE, Planned
from headway.plan.verdict import overall, verdict
from headway.reports.plan import Part, PartsBar, plan_report

GIB = 1 << 30
POOL = "node[0].unified"


def line(item: str, phase: Phase, size: int, upper: int = 0, role: str = "trainer") -> Line:
    return Line(POOL, phase, role, 0, item, size * GIB, max(size, upper) * GIB, "allocated", f"1 x {size}", "a test")


LEDGER = Ledger(
    (
        line("weights", Phase.ROLLOUT, 8), line("weights", Phase.TRAIN, 8),
        line("weights", Phase.ROLLOUT, 4, 0, "engine"), line("KV cache", Phase.ROLLOUT, 16, 20, "engine"),
        line("moments", Phase.TRAIN, 40, 44),
    ),
    {Phase.ROLLOUT: 1, Phase.TRAIN: 2},
)  # fmt: skip


def planned(*limits: int, unknown: tuple[str, ...] = (), deciding: tuple[str, ...] = ()) -> Planned:
    known = tuple(Limit(f"limit {size}", size * GIB, "something dies", "a test") for size in limits)
    machine = Machine("a machine", (Pool(POOL, "unified", 64 * GIB, known),), 2)
    workload = replace(presets.workload(shapes.table()["qwen3-0.6b"], "headway"), unknown=unknown)
    return Planned(workload, machine, LEDGER, overall(verdict(LEDGER, machine), deciding), 99, NO_ADVICE)


def shown(what: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(what)
    return [text.rstrip() for text in console.export_text().splitlines()]


def row(lines: list[str], name: str) -> str:
    return next(text for text in lines if text.startswith(name))


@pytest.mark.parametrize(
    ("sizes", "upper", "marks", "text"),
    [
        ((40, 20), 80, ((90, "│"),), "A███B█▒▒·│"),
        ((40, 20), 60, (), "A███B█····"),
        ((100,), 120, ((50, "│"),), "A████│████"),
        ((3, 3, 3), 9, (), "B·········"),
        ((0, 50), 50, ((70, "│"), (80, "┃")), "B████··│┃·"),
        ((0,), 0, ((1000, "│"),), "·········│"),
    ],
)
def test_bar(sizes: tuple[int, ...], upper: int, marks: tuple[tuple[int, str], ...], text: str) -> None:
    parts = tuple(Part(letter, "blue", size) for letter, size in zip("ABC", sizes, strict=False))
    assert PartsBar(parts, upper, marks, 100).text(10).plain == text


@given(st.lists(st.integers(0, 1 << 40), max_size=8), st.integers(0, 1 << 40), st.integers(1, 120))
def test_a_bar_fills_its_width_and_its_length_is_the_sum(sizes: list[int], more: int, width: int) -> None:
    parts = tuple(Part("x", "blue", size) for size in sizes)
    scale = max(1, sum(sizes) + more)
    text = PartsBar(parts, sum(sizes), (), scale).text(width).plain
    assert len(text) == width
    assert abs(text.count("x") + text.count("█") - sum(sizes) / scale * width) <= 0.5


def test_a_row_has_what_its_phase_holds_and_the_share_of_the_lowest_limit() -> None:
    lines = shown(plan_report(planned(64, 60), "headway", lines=True))
    assert row(lines, "train").split()[-3:] == ["48.00", "52.00", "80%"]
    assert row(lines, "rollout").split()[-3:] == ["28.00", "32.00", "47%"]
    assert "of limit 60" in " ".join(lines)


def test_limits_are_apart_with_what_is_left_below_each() -> None:
    text = " ".join(" ".join(shown(plan_report(planned(64, 50), "headway", lines=True))).split())
    assert "│ limit 50 50.00 GiB (something dies): expected leaves 2.00 GiB, bound is 2.00 GiB over" in text
    assert "┃ limit 64 64.00 GiB (something dies): expected leaves 16.00 GiB, bound leaves 12.00 GiB" in text
    assert "Tight: what is expected is inside every limit, an upper bound is not." in text


def test_the_worst_phase_is_named_with_role_rank_step_and_largest_lines() -> None:
    lines = shown(plan_report(planned(40), "headway", lines=True))
    assert any(
        text.startswith("worst phase train, from step 2, trainer rank 0: 48.00 GiB expected") for text in lines
    )
    assert "  40.00 GiB moments (trainer)" in lines
    assert "Does not fit: what is expected is over a limit." in lines


def test_every_part_of_the_bars_is_in_the_legend() -> None:
    lines = shown(plan_report(planned(60), "headway", lines=True), 120)
    legend = row(lines, "A moments")
    for letter, name in (("A", "moments"), ("B", "KV cache"), ("C", "weights (trainer)"), ("D", "weights (engine)")):
        assert f"{letter} {name}" in legend
    assert {"B", "C", "D"} <= set(row(lines, "rollout"))
    assert {"A", "C"} <= set(row(lines, "train"))


def test_a_limit_far_above_is_listed_but_not_drawn() -> None:
    near, far = (shown(plan_report(planned(60, high), "headway", lines=True)) for high in (64, 640))
    assert "┃" in row(near, "train")
    assert "┃" not in row(far, "train")
    assert any(text.startswith("┃ limit 640") for text in far)


def test_no_limit_is_said() -> None:
    lines = shown(plan_report(planned(), "headway", lines=True))
    assert f"{POOL} (unified memory, 64.00 GiB): Cannot tell" in lines
    assert any("no limit is known" in text for text in lines)


def test_what_is_assumed_is_listed_by_reason_and_what_decides_is_marked() -> None:
    unknown = ("rollout.max_answer = 9 (nobody said)", "rollout.prompts = 8 (nobody said)", "x: a long story")
    lines = shown(plan_report(planned(60, unknown=unknown, deciding=unknown[:1]), "headway", lines=True), 100)
    assert any(
        text.strip() == "rollout.max_answer = 9 ◀ decides, rollout.prompts = 8 (nobody said)" for text in lines
    )
    assert any(text.strip() == "x: a long story" for text in lines)
    assert any("half or twice of what is assumed" in text for text in lines)


def test_in_short_what_decides_stands_first_and_a_remark_never_before_a_value() -> None:
    unknown = (
        "a remark on the machine",
        "x = 1 (nobody said)",
        "y = 2 (nobody said)",
        "rollout.max_answer = 9 (why)",
    )
    decides = " ".join(shown(plan_report(planned(60, unknown=unknown, deciding=unknown[1:2]), "headway")))
    assert "Assumed: x = 1 (decides); rollout.max_answer = 9; y = 2; 1 more." in decides
    assert "nobody said x, and half or twice" in decides
    plain = " ".join(shown(plan_report(planned(60, unknown=unknown[:1]), "headway")))
    assert "Assumed: a remark on the machine. --lines" in plain
    assert "Assumed" not in " ".join(shown(plan_report(planned(60), "headway")))


def test_lines_have_formula_and_source_and_sum_to_their_phase() -> None:
    lines = shown(plan_report(planned(60), "headway", lines=True), 100)
    at = lines.index(f"{POOL}, train, from step 2: 48.00 GiB expected, at most 52.00 GiB")
    assert lines[at + 1].strip() == "40.00 GiB moments (trainer 0, allocated), at most 44.00 GiB"
    assert lines[at + 2].strip() == "= 1 x 40 [a test]"


@settings(max_examples=20, deadline=None)
@given(st.integers(40, 200))
def test_nothing_is_wider_than_the_terminal_or_cut(width: int) -> None:
    lines = shown(plan_report(planned(50, 64), "headway", lines=True), width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)


def test_a_host_of_which_nobody_said_how_much_it_has_is_in_the_verdict():
    run = presets.workload(
        shapes.table()["llama3-70b"], "torchtune", ("layout.devices=8", "trainer.optimizer.offload=1")
    )
    machine = machines.by_name("8xh100-80")

    def heading(where: Machine) -> str:
        ledger = plan(run, where)
        whole = Planned(run, where, ledger, overall(verdict(ledger, where)), 99, NO_ADVICE)
        return " ".join(shown(plan_report(whole, "torchtune", lines=True), 300)[:8])

    assert "Fits: even the upper bounds are inside every known limit. A node's host needs up to 989" in heading(
        machine
    )
    assert "Does not fit: what is expected is over a limit." in heading(machines.with_host(machine, 512 * GIB))
    assert "nobody said how much" not in heading(machines.with_host(machine, 1100 * GIB))
