"""What the plan says of processes, against the processes themselves."""

import pytest
from msgspec.structs import replace

from headway.config.sections import DataSection, ModelSection, RewardSection, RunSpec
from headway.config.source import resolve
from headway.config.workload import to_workload
from headway.guard.read import process_status
from headway.plan import host
from headway.rollout.data import Problem
from headway.rollout.rewards import Answer, make_scorer
from headway.rollout.tasks import draw_records


@pytest.mark.parametrize("kind", ["task", "math"])
def test_the_reward_process_holds_what_is_planned(kind: str) -> None:
    data = DataSection(task="chain_sum")
    section = RewardSection(kind=kind, extract="last-number")
    with_records = draw_records("chain_sum", {}, 0)
    record = next(with_records)
    with_records.close()
    problem = Problem(0, record.prompt, (1,), record.label, record.entry)
    scorer = make_scorer(section, data)
    try:
        scorer.check([problem])
        scorer.score([Answer(problem, "the answer is 4")])
        (pid,) = scorer.pids()
        status = process_status(pid)
    finally:
        scorer.close()

    model = ModelSection(path="tiny-llama", init="random")
    workload = to_workload(RunSpec(model=model, data=data), resolve(model))
    item = host.reward(replace(workload, reward_kind=kind))
    assert item is not None
    assert status is not None
    assert status.peak_rss is not None
    assert abs(item.bytes / status.peak_rss - 1) < 0.15
    assert item.upper > status.peak_rss
