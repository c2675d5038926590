"""The plan of a script beside a diagnosis: changes of the memory that ran out, and what a log shows beyond it."""

import pytest

from headway.diagnose.finding import Diagnosis
from headway.diagnose.planned import with_plan
from headway.facts.machines import by_name
from headway.facts.workload import Workload
from headway.foreign.launched import workload
from headway.foreign.readers import settings_of
from headway.foreign.shell import read_text

from .told import diagnosis

MACHINE = by_name("8xh100")
VERL = (
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=7168 "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.n_gpus_per_node=8 algorithm.adv_estimator=grpo "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={0} "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1"
)
KILL = (
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node "
    "(IP: 10.0.0.5) where the task (actor ID: 7, pid=9, memory used=62.10GB) was running was {0}GB / {1}GB "
    "(0.966276), which exceeds the memory usage threshold of 0.95.\n"
)
CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {0} GiB. GPU 0 has a total capacity of 79.11 "
    "GiB of which 3.31 GiB is free. Including non-PyTorch memory, this process has {1} GiB memory in use."
)


def planned(text: str, rows: int) -> Diagnosis:
    run: Workload = workload(settings_of(read_text(VERL.format(rows))))
    return with_plan(diagnosis(text), run, MACHINE)


def said(found: Diagnosis, words: str) -> bool:
    return any(words in line for line in found.context)


def test_changes_for_the_device_are_none_of_a_kill_for_host_memory() -> None:
    found = planned(KILL.format(486.53, 503.51), rows=64)
    assert not any(".device" in str(each["pool"]) for each in found.remedies)
    assert said(found, "which is not what ran out")


def test_a_refused_device_request_gets_them() -> None:
    found = planned(CUDA.format(20.0, 75.8), rows=64)
    assert any(".device" in str(each["pool"]) for each in found.remedies)
    assert not said(found, "which is not what ran out")


@pytest.mark.parametrize(("used", "total", "expected"), [(980.0, 1000.0, True), (200.0, 207.0, False)])
def test_a_node_that_held_more_than_the_plans_bound(used: float, total: float, expected: bool) -> None:
    assert said(planned(KILL.format(used, total), rows=1), f"the node held {used:.2f} GiB") == expected


@pytest.mark.parametrize(("asked", "used", "expected"), [(9.0, 69.8, True), (2.0, 30.0, False)])
def test_a_process_that_held_more_than_the_plans_bound(asked: float, used: float, expected: bool) -> None:
    assert said(planned(CUDA.format(asked, used), rows=1), f"the process held {used:.2f} GiB") == expected
