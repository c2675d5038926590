"""A change that is pasted behind the command gives the plan that was promised with it."""

import pytest

from headway.facts import machines
from headway.facts.shapes import by_name
from headway.foreign.presets import workload
from headway.plan.plan import plan
from headway.plan.planned import examine
from headway.plan.remedies import TOLD, as_settings
from headway.plan.verdict import judge, tops

CASES = [
    ("qwen3-4B", "headway", "rtx4090", ()),
    ("qwen3-4B", "trl", "h100", ("engine.system=vllm",)),
    ("qwen2.5-1.5B", "trl", "t4", ()),
    ("qwen3-8B", "slime", "8xh100", ("rollout.max_answer=32768",)),
    ("qwen3-32B", "verl", "8xh100", ()),
    ("qwen3-8B", "verl-megatron", "8xa100-40", ("rollout.max_answer=16384",)),
    ("qwen3-8B", "openrlhf", "8xa100-40", ()),
    ("qwen3-4B", "miles-fsdp", "gb10", ()),
    ("llama3.1-8B-Instruct", "peft", "rtx4090", ("trainer.rows=8",)),
    ("llama3.1-8B-Instruct", "fsdp2", "2xh100", ()),
    ("gemma2-9B", "qlora", "t4", ("trainer.rows=4",)),
]


@pytest.mark.parametrize(("model", "trainer", "machine", "given"), CASES)
def test_a_pasted_change_holds_what_it_promised(
    model: str, trainer: str, machine: str, given: tuple[str, ...]
) -> None:
    shape, where = by_name(model), machines.by_name(machine)
    assert shape is not None
    run = workload(shape, trainer, given)
    where = where if run.ray else where.without_ray()
    found = examine(run, where)
    assert found.advice.remedies, "nothing to paste"
    for remedy in found.advice.remedies:
        if any(change.key == "model" for change in remedy.changes):
            continue
        pasted = workload(shape, trainer, (*given, *as_settings(run, remedy.workload)))
        sizes = tops(plan(pasted, where))
        for effect in remedy.effects:
            assert sizes[effect.pool] == (effect.after_bytes, effect.after_upper), remedy.text
        if remedy.fits and remedy in found.advice.remedies[:TOLD]:
            assert judge(pasted, where).kind == remedy.verdict, remedy.text


@pytest.mark.parametrize(("host", "back"), [(640, True), (1500, False)])
def test_a_host_that_is_short_gets_the_optimizer_back_on_the_devices(host: int, back: bool) -> None:
    """slime's scripts of 32B offload it: 12 bytes a parameter of host memory, which eight H200 have room for."""
    shape = by_name("qwen3-32B")
    assert shape is not None
    where = machines.with_host(machines.by_name("8xh200"), host << 30)
    settings = ("trainer.optimizer.offload=1.0", "trainer.optimizer.precision_aware=true", "layout.tensor=8")
    run = workload(shape, "slime", (*settings, "engine.tensor_parallel=8"))
    found = examine(run, where).advice.remedies
    changes = [change for remedy in found for change in remedy.changes]
    assert any((change.key, change.value) == ("trainer.optimizer.offload", 0.0) for change in changes) == back
    if back:
        assert found[0].text == "no --optimizer-cpu-offload"
