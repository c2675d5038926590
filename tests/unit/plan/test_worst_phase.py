"""In which phase a run that does not fit ends, and what the plan says of phases that only may pass the limit."""

import pytest

from headway.facts.machine import Limit
from headway.plan.ledger import Ledger, Line, Phase
from headway.plan.verdict import of_pool
from headway.reports.brief import may_end_before

POOL = "node[0].device[0]"
LIMIT = Limit("device memory", 100, "CUDA reports out of memory", "given")


def ledger(**phases: tuple[int, int]) -> Ledger:
    """Phases by name, each with what is expected and its bound."""
    lines = tuple(
        Line(POOL, Phase(name), "trainer", 0, "weights", size, upper, "allocated", "", "")
        for name, (size, upper) in phases.items()
    )
    return Ledger(lines, {line.phase: 1 for line in lines})


@pytest.mark.parametrize(("phases", "ends", "before"), [
    # the first that is expected to pass it, whatever a later one holds
    ({"score": (110, 120), "train": (150, 160)}, "score", ""),
    # one whose bound alone passes it may end the run, and is not said to
    ({"score": (90, 120), "train": (110, 130)}, "train", ", or before in phase score"),
    ({"load": (50, 60), "score": (90, 99), "train": (110, 130)}, "train", ""),
    # nothing is expected to: the highest bound decides
    ({"score": (90, 130), "train": (95, 110)}, "score", ""),
    ({"score": (60, 70), "train": (50, 90)}, "score", ""),
])  # fmt: skip
def test_the_phase_in_which_a_run_ends(phases: dict[str, tuple[int, int]], ends: str, before: str) -> None:
    found = ledger(**phases)
    pool = of_pool(found, POOL, [LIMIT])
    assert pool.peak.phase == ends
    if pool.kind == "does not fit":
        assert may_end_before(found, pool) == before
