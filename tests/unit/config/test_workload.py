"""From a RunSpec to the planner's workload."""

from pathlib import Path

import pytest

from headway.config.sections import RunSpec
from headway.config.source import ModelSource, resolve
from headway.config.workload import to_workload
from headway.errors import InputError
from headway.facts import machines, probe
from headway.facts.workload import Lora, Workload


def workload(**sections: dict[str, object] | None) -> Workload:
    raw = {
        "model": {"path": "tiny-llama", "init": "random", "dtype": "fp32"},
        "data": {"task": "chain_sum", "max_prompt": 40, "problems": 50},
        "memory": {"device": "cpu", "threads": 3},
    } | sections
    spec = RunSpec.model_validate(raw)
    return to_workload(spec, resolve(spec.model))


def test_every_section_that_costs_memory_is_carried_over() -> None:
    found = workload(
        rollout={"prompts": 4, "samples": 6, "max_answer": 20, "kv_budget": "8MiB"},
        train={"cap": 333, "checkpointing": False, "logprob_chunk": 17, "updates": 2, "steps": 5},
        objective={"entropy_coef": 0.1},
        eval={"problems": 9, "samples": 3},
        reward={"kind": "exact", "memory": "1GiB"},
        output={"tensorboard": False},
    )
    assert (found.model.name, found.device, found.threads, found.weights_file_bytes) == ("tiny-llama", "cpu", 3, 0)
    trainer, rollout = found.trainer, found.rollout
    assert (trainer.cap, trainer.checkpointing, trainer.logprob_chunk, trainer.updates) == (333, False, 17, 2)
    assert (trainer.param_dtype, trainer.attention, trainer.entropy) == ("fp32", "sdpa", True)
    assert (rollout.prompts, rollout.samples, rollout.kv_budget) == (4, 6, 8 << 20)
    assert (rollout.max_prompt, rollout.max_answer, rollout.longest) == (40, 20, 60)
    assert (rollout.eval_problems, rollout.eval_samples) == (9, 3)
    assert (found.problems, found.steps, found.optimizer_steps) == (59, 5, 10)
    assert (found.reward_kind, found.reward_limit_bytes, found.tensorboard) == ("exact", 1 << 30, False)


@pytest.mark.parametrize(
    ("kl", "lora", "reference"),
    [(0.0, None, "none"), (0.1, None, "copy"), (0.1, {"rank": 4}, "adapter-off"), (0.0, {"rank": 4}, "none")],
)
def test_a_reference_exists_only_where_the_objective_needs_one(
    kl: float, lora: dict[str, object] | None, reference: str
) -> None:
    found = workload(objective={"kl_coef": kl}, lora=lora)
    assert found.trainer.reference == reference
    assert found.trainer.lora == (None if lora is None else Lora(4, "all-linear"))


@pytest.mark.parametrize(("file", "kind"), [("a.jsonl", "json"), ("a.json", "json"), ("a.PARQUET", "parquet")])
def test_a_file_names_its_reader(file: str, kind: str) -> None:
    assert workload(data={"file": file}).data == kind
    assert workload().data == "task"


def test_no_threads_are_as_many_as_this_machine_can_run() -> None:
    assert workload(memory={"device": "cpu"}).threads == probe.usable_cores()


def test_a_model_that_is_not_here_yet_cannot_be_planned() -> None:
    spec = RunSpec.model_validate({"model": {"path": "owner/name"}, "data": {"task": "chain_sum"}})
    with pytest.raises(InputError, match=r"model\.path = owner/name.*not on this machine"):
        to_workload(spec, ModelSource("hub", "owner/name", None, None, 0))


def test_files_of_a_model_are_counted(tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"model": {"path": "tiny-llama"}, "data": {"task": "chain_sum"}})
    shape = workload().model
    assert to_workload(spec, ModelSource("folder", "x", tmp_path, shape, 1234)).weights_file_bytes == 1234


@pytest.mark.parametrize(
    ("wanted", "name", "device"),
    [("auto", "gb10", "cuda"), ("auto", "8xh100-80", "cuda"), ("auto", "cpu-64gib", "cpu"), ("cpu", "gb10", "cpu")],
)
def test_the_device_is_what_the_named_machine_has(wanted: str, name: str, device: str) -> None:
    spec = RunSpec.model_validate(
        {"model": {"path": "tiny-llama", "init": "random"}, "data": {"task": "gcd"}, "memory": {"device": wanted}}
    )
    machine = machines.by_name(name)
    found = to_workload(spec, resolve(spec.model), machine)
    assert (found.device, found.threads) == (device, max(1, machine.cores))


def test_a_device_that_the_named_machine_lacks_is_an_error() -> None:
    spec = RunSpec.model_validate(
        {"model": {"path": "tiny-llama", "init": "random"}, "data": {"task": "gcd"}, "memory": {"device": "cuda"}}
    )
    with pytest.raises(InputError, match=r"cpu-64gib has no device"):
        to_workload(spec, resolve(spec.model), machines.by_name("cpu-64gib"))
