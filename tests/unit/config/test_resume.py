from headway.config.resume import changes, flat, identity
from headway.config.sections import (
    DataSection,
    LoraSection,
    MemorySection,
    ModelSection,
    OutputSection,
    RunSpec,
    TrainSection,
)

SPEC = RunSpec(model=ModelSection(path="tiny-llama"), data=DataSection(task="chain_sum"))


def changed(**sections: object) -> RunSpec:
    return SPEC.model_copy(update=sections)


def test_memory_output_and_length_may_change() -> None:
    other = changed(
        memory=MemorySection(limit="1GiB"), output=OutputSection(keep=5), train=TrainSection(steps=7, cap=64)
    )
    assert identity(other) == identity(SPEC)
    assert changes(flat(SPEC), flat(other)) == (
        "train.steps: 100 -> 7",
        "train.cap: 4096 -> 64",
        "memory.limit: None -> 1073741824",
        "output.keep: 2 -> 5",
    )


def test_what_is_learned_may_not_change() -> None:
    assert changes(identity(SPEC), identity(changed(train=TrainSection(seed=1)))) == ("train.seed: 0 -> 1",)
    assert changes(identity(SPEC), identity(changed(model=ModelSection(path="tiny-qwen3")))) == (
        "model.path: 'tiny-llama' -> 'tiny-qwen3'",
    )


def test_adding_adapters_is_another_run() -> None:
    found = changes(identity(SPEC), identity(changed(lora=LoraSection(rank=4))))
    assert "lora.rank: (not set) -> 4" in found
    assert "lora: None -> (not set)" in found
