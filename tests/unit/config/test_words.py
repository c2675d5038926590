"""One vocabulary for `--set`: a RunSpec's and a Workload's keys, wherever they mean the same."""

import pytest

from headway.cli.inputs import read_case
from headway.config import keys
from headway.config.load import load
from headway.config.words import SAME, as_runspec, as_workload
from headway.errors import InputError
from headway.foreign import settings

RUN = '[model]\npath = "small-llama"\ninit = "random"\n[data]\ntask = "chain_sum"\n'


def test_every_pair_is_a_key_on_both_sides() -> None:
    runspec = {key.path for section in keys.table().values() for key in section.values()}
    for ours, theirs in SAME.items():
        assert ours in runspec or ours in keys.sections()
        assert theirs in settings.table() or theirs in settings.FRESH
    assert len(set(SAME.values())) == len(SAME)


@pytest.mark.parametrize(
    "setting", ["rollout.samples=4", "engine.memory_fraction=0.3", "train.lr=1e-5", "x", "a.b=c=d"]
)
def test_what_is_no_pair_stays(setting: str) -> None:
    assert as_workload([setting]) == as_runspec([setting]) == (setting,)


def test_there_and_back() -> None:
    given = tuple(f"{key}=1" for key, theirs in SAME.items() if "." in theirs)
    assert as_runspec(as_workload(given)) == given


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("train.cap=600", "trainer.cap=600"), ("model.dtype=fp32", "trainer.param_dtype=fp32"),
        ("lora.rank=8", "trainer.lora.rank=8"), ("data.max_prompt=77", "rollout.max_prompt=77"),
        ("objective.kl_coef=0", "trainer.reference=none"),
        ("rollout.samples=4", "rollout.samples=4"),
    ],
)  # fmt: skip
def test_both_words_make_the_same_run(ours: str, theirs: str, tmp_path) -> None:
    one, other = (read_case(["qwen3-0.6B"], "headway", "rtx4090", [each]) for each in (ours, theirs))
    assert one.workload == other.workload
    file = tmp_path / "run.toml"
    file.write_text(RUN)
    assert load(file, [ours]) == load(file, [theirs])


def test_a_key_without_a_section_is_no_word_of_a_runspec(tmp_path) -> None:
    one, other = (read_case(["qwen3-0.6B"], "headway", "rtx4090", [each]) for each in ("train.steps=7", "steps=7"))
    assert one.workload == other.workload
    file = tmp_path / "run.toml"
    file.write_text(RUN)
    with pytest.raises(InputError, match=r"must be section\.key=value"):
        load(file, ["steps=7"])


def test_a_coefficient_above_0_holds_a_reference() -> None:
    run = read_case(["qwen3-0.6B"], "headway", "rtx4090", ["objective.kl_coef=0.1"]).workload
    assert (run.trainer.reference, run.trainer.reference_weight) == ("copy", 0.1)
    adapted = read_case(["qwen3-0.6B"], "headway-lora", "rtx4090", ["objective.kl_coef=0.1"]).workload
    assert adapted.trainer.reference == "adapter-off"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train.lr=1e-6", "a RunSpec's key that changes nothing which is planned here"),
        ("train.cpa=5", "did you mean train"), ("data.max_prmpt=5", "did you mean data.max_prompt"),
        ("train.cap=many", "must be a whole number"), ("objective.kl_coef=some", "RunSpec's key"),
    ],
)  # fmt: skip
def test_near_misses_are_told(setting: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_case(["qwen3-0.6B"], "headway", "rtx4090", [setting])
