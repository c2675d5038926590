import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headway.config.sections import OutputSection
from headway.plan.ledger import Phase
from headway.rollout.samples import Sample
from headway.train.loss import LossStats
from headway.train.metrics import StepClock, Writers, step_record
from headway.train.output import RunFolder

RAISED = "exception: ValueError: no (mine.py:3)"
SLOW = "timeout: took longer than 2 s"


def samples(*earned: float | str) -> list[Sample]:
    """One answer for each reward, or for each failure."""
    return [
        Sample(0, at, (1,), (2,), (-1.0,), "4", "stop", None, None, each)
        if isinstance(each, str)
        else Sample(0, at, (1,), (2,), (-1.0,), "4", "stop", each, each)
        for at, each in enumerate(earned)
    ]


def record(*earned: float | str) -> dict[str, float]:
    return step_record(1, samples(*earned), 2, LossStats(), StepClock(), 0, {})


def test_failures_are_counted_by_reason_and_left_out_of_the_mean() -> None:
    found = record(-1.0, 3.0, RAISED, 2.0, SLOW, RAISED)
    assert (found["reward"], found["reward_failures"]) == (4 / 3, 3)
    reasons = {name: value for name, value in found.items() if name.startswith("reward_failures/")}
    assert reasons == {"reward_failures/exception": 2, "reward_failures/timeout": 1}


def test_a_step_without_failures_names_no_reason() -> None:
    found = record(1.0, 0.0)
    assert found["reward_failures"] == 0
    assert not any(name.startswith("reward_failures/") for name in found)


@pytest.mark.parametrize(
    ("earned", "share"),
    [
        ([1.0, 0.0, 0.5, 0.5], 0.5),
        ([-2.0, -2.0, 7.0, 7.0], 1.0),
        ([1.0, 0.0, 0.0, 1.0], 0.0),
        ([1.0, RAISED, 0.5, 0.25], 0.5),  # one reward alone is no better and no worse than another
    ],
)
def test_groups_without_two_different_rewards_are_counted(earned: list[float | str], share: float) -> None:
    assert record(*earned)["frac_reward_zero_std"] == share


@pytest.mark.parametrize(
    ("earned", "correct"),
    [([1.0, 0.5, 0.0, 1.0], 0.5), ([1.0, RAISED, 0.0, 1.0], 0.5), ([1.0, 2.0], None), ([1.0, -0.1], None)],
)
def test_only_the_full_score_is_correct(earned: list[float | str], correct: float | None) -> None:
    assert record(*earned).get("correct") == correct


def test_wandb_gets_a_table_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[dict[str, Any], int]] = []

    class Run:
        def log(self, values: dict[str, Any], step: int) -> None:
            logged.append((values, step))

    class Table:
        def __init__(self, columns: list[str], data: list[list[Any]]) -> None:
            self.rows = [dict(zip(columns, row, strict=True)) for row in data]

    module = ModuleType("wandb")
    module.init, module.Table = lambda **_: Run(), Table  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    writers = Writers(RunFolder(tmp_path), OutputSection(dir=tmp_path, wandb=True))
    row = {"prompt": "2 + 2 =", "label": "4", "response": "5", "reward": -1.0, "score": -1.0, "correct": None}
    writers.samples(Phase.ROLLOUT, 3, [row | {"failure": None, "finish": "stop", "prompt_ids": [1]}])
    ((values, step),) = logged
    assert step == 3
    assert values["samples/rollout"].rows == [row | {"failure": None, "finish": "stop"}]
