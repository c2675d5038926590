"""Every key of a workload can be set by its path, and nothing else can."""

import pytest

from headway.errors import InputError
from headway.facts.shapes import ModelShape, by_name
from headway.facts.workload import ROLES, Lora, Workload
from headway.foreign.presets import value, workload
from headway.foreign.settings import apply, table


def example() -> Workload:
    shape = by_name("qwen3-0.6B")
    assert shape is not None
    return workload(shape, "miles-fsdp")


def test_values_get_the_type_of_their_field() -> None:
    settings = [
        "rollout.max_answer=256", "trainer.checkpointing=false", "engine.bucket=1GiB", "engine.memory_fraction=0.2",
        "trainer.optimizer.state_dtype=int8", "steps = 4",
    ]  # fmt: skip
    changed = apply(example(), settings)
    assert changed.rollout.max_answer == 256
    assert changed.trainer.checkpointing is False
    assert changed.engine is not None
    assert (changed.engine.bucket, changed.engine.memory_fraction) == (1 << 30, 0.2)
    assert (changed.trainer.optimizer.state_dtype, changed.steps) == ("int8", 4)


def test_a_key_of_an_absent_section_makes_it_and_none_takes_it_away() -> None:
    made = apply(example(), ["trainer.lora.rank=8", "trainer.lora.targets=q_proj,v_proj"])
    assert made.trainer.lora == Lora(8, ("q_proj", "v_proj"))
    assert apply(made, ["trainer.lora=none"]).trainer.lora is None
    assert apply(made, ["engine=none"]).engine is None


def test_every_key_reads_back_what_its_workload_holds() -> None:
    """Setting a key to its own value changes nothing: no key is lost on the way through text."""
    others = [f"{role}.group=0" for role in ROLES]
    run = apply(
        example(),
        [
            "steps=100",
            "trainer.lora.rank=8",
            "trainer.quant.kind=nf4",
            "trainer.float8.recipe=rowwise",
            "engine.quant.kind=fp8",
            *others,
        ],
    )
    for path in table():
        held = value(run, path)
        if isinstance(held, ModelShape):
            held = held.name
        text = "none" if held is None else str(held).lower() if isinstance(held, bool) else str(held)
        assert apply(run, [f"{path}={text}"]) == run, path


def test_the_first_key_of_another_model_makes_it_like_the_actor_and_none_takes_it_away() -> None:
    run = example()
    made = apply(run, ["critic.trainer.rows=2", "critic.model=qwen3-1.7b", "teacher.in_host=true"])
    assert made.critic is not None
    assert made.teacher is not None
    assert (made.critic.trained, made.critic.trainer.rows, made.critic.trainer.loss) == (True, 2, "value")
    assert (made.critic.model.name, made.critic.model.head_parameters()) == ("qwen3-1.7B", 0)
    assert (made.teacher.trained, made.teacher.in_host, made.teacher.model) == (False, True, run.model)
    assert made.teacher.trainer.loss == run.trainer.loss
    assert apply(made, ["critic=none", "teacher=none"]) == run


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("critic.model=my-critic", "critic.model=my-critic: no such model in the built-in table"),
        ("critic.trainer.lora.rank=8", "no such key"),
        ("critic.layout.tensor=0", "must be at least 1"),
        ("rollout.maxanswer=256", "did you mean rollout.max_answer"),
        ("max_answer=256", "did you mean rollout.max_answer?"),
        ("trainer.cap=many", "trainer.cap=many: must be a whole number"),
        ("trainer.cap=-1", "must not be negative"),
        ("rollout.prompts=0", "must be at least 1"),
        ("device=tpu", "must be one of cpu, cuda"),
        ("engine.bucket=big", "is not a size"),
        ("rollout.max_answer", "write key=value"),
        ("model=x", "no such key"),
    ],
)
def test_what_cannot_be_set_is_said(setting: str, told: str) -> None:
    with pytest.raises(InputError, match=told.replace("?", r"\?")):
        apply(example(), [setting])


def test_all_problems_are_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        apply(example(), ["foo=1", "device=tpu", "steps=3"])
    assert len(caught.value.problems) == 2
