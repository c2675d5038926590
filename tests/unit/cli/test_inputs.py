"""What the words of `headway plan` mean: a RunSpec or a model, on which machine, or a clear error."""

import json
from pathlib import Path

import pytest

from headway.cli.inputs import Case, find_machine, read_case
from headway.errors import InputError
from headway.facts.machine import is_ray
from headway.plan.plan import plan

GIB = 1 << 30
SPEC = '[model]\npath = "tiny-llama"\ninit = "random"\n[data]\ntask = "gcd"\n'
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 264, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip


def case(run: str, *settings: str, trainer: str | None = None, machine: str | None = "gb10") -> Case:
    return read_case([run], trainer, machine, settings)


def write(path: Path, text: str = SPEC) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["qwen3-4b", "Qwen3-4B", "Qwen/Qwen3-4B", "QWEN3_4B"])
def test_a_model_of_the_table_in_any_spelling(name: str) -> None:
    found = case(name)
    assert (found.workload.model.name, found.workload.trainer.system, found.spec) == ("qwen3-4B", "headway", None)


def test_a_model_by_its_folder_or_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    config = write(folder / "config.json", json.dumps(CONFIG))
    for run in (str(folder), config):
        shape = case(run).workload.model
        assert (shape.name, shape.layers, shape.parameters()) == ("my-model", 2, 103232)


def test_a_folder_of_a_model_s_name_is_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3-4b").mkdir()
    assert case("qwen3-4b").workload.model.hidden == 2560
    write(tmp_path / "qwen3-4b" / "config.json", json.dumps(CONFIG))
    assert case("qwen3-4b").workload.model.hidden == 64


def test_a_runspec_takes_its_own_keys_and_the_named_machine(tmp_path: Path) -> None:
    run = write(tmp_path / "run.toml")
    found = case(run, "rollout.max_answer=77", "memory.limit=4GiB")
    assert found.spec is not None
    assert (found.workload.rollout.max_answer, found.workload.device, found.workload.threads) == (77, "cuda", 20)
    (pool,) = found.machine.pools
    assert pool.lowest.name == "memory.limit"
    assert pool.lowest.bytes == 4 * GIB + pool.floor_bytes
    cpu = case(run, machine="cpu-64gib")
    assert cpu.workload.device == "cpu"
    assert plan(cpu.workload, cpu.machine).pools() == ("node[0].host",)


def test_a_runspec_without_the_ending_is_read_as_one(tmp_path: Path) -> None:
    assert case(write(tmp_path / "run")).spec is not None


def test_a_hub_model_that_was_not_fetched_has_the_table_s_shape_and_says_so(tmp_path: Path) -> None:
    text = SPEC.replace("tiny-llama", "Qwen/Qwen3-0.6B").replace('init = "random"\n', "")
    workload = case(write(tmp_path / "run.toml", text)).workload
    assert (workload.model.name, workload.model.layers) == ("Qwen/Qwen3-0.6B", 28)
    assert workload.weights_file_bytes == 2 * workload.model.parameters()
    assert any("built-in table" in text for text in workload.unknown)
    with pytest.raises(InputError, match="not on this machine yet"):
        case(write(tmp_path / "run.toml", text.replace("Qwen/Qwen3-0.6B", "nobody/nothing")))


def test_only_a_run_under_ray_has_ray_s_limits() -> None:
    under_ray = case("qwen3-4b", trainer="miles-fsdp").machine
    assert any(is_ray(limit) for limit in under_ray.pools[0].limits)
    assert not any(is_ray(limit) for limit in case("qwen3-4b").machine.pools[0].limits)
    assert not any(
        is_ray(limit) for limit in case("qwen3-4b", "ray=false", trainer="miles-fsdp").machine.pools[0].limits
    )


def test_host_memory_is_set_with_the_machine() -> None:
    machine = case("qwen3-4b", "machine.host=512GiB", "rollout.max_answer=9", machine="rtx4090").machine
    assert machine.pool("node[0].host").total_bytes == 512 * GIB
    with pytest.raises(InputError, match="no host memory apart"):
        case("qwen3-4b", "machine.host=512GiB", machine="gb10")
    for text in ("lots", "0"):
        with pytest.raises(InputError, match=f"--set machine.host={text}"):
            case("qwen3-4b", f"machine.host={text}", machine="rtx4090")


def test_no_name_is_this_machine() -> None:
    machine = find_machine(None)
    assert {pool.name for pool in machine.pools} & {"node[0].host", "node[0].unified"}
    assert not any(is_ray(limit) for pool in machine.pools for limit in pool.limits)


@pytest.mark.parametrize(
    ("machine", "nodes", "devices", "shards"),
    [("8xh100-80", 1, 8, 8), ("2x8xh100-80", 2, 8, 16), ("2xgb10", 2, 1, 2)],
)
def test_a_sharding_trainer_takes_all_devices_unless_told(
    machine: str, nodes: int, devices: int, shards: int
) -> None:
    found = case("qwen3-4b", trainer="miles-fsdp", machine=machine).workload
    assert (found.layout.nodes, found.layout.devices, found.layout.shards) == (nodes, devices, shards)
    assert any(text.startswith("layout.") and machine in text for text in found.unknown)
    told = case("qwen3-4b", "layout.devices=1", trainer="miles-fsdp", machine=machine).workload
    assert told.layout.ranks == 1


def test_headway_s_own_trainer_takes_one_device_and_the_cpu_where_there_is_none() -> None:
    assert case("qwen3-4b", machine="8xh100-80").workload.layout.ranks == 1
    found = case("qwen3-0.6b", machine="cpu-64gib")
    assert plan(found.workload, found.machine).pools() == ("node[0].host",)
    assert any("device = cpu" in text for text in found.workload.unknown)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run.sh"], "no such file"),
        (["train.log"], "no such file"),
        (["python3", "serve.py"], "no trainer that is known is started"),
        (["train.py"], "train.py: no such file"),
        (["missing.py"], "missing.py: no such file"),
        (["run.yaml"], "pass the command that uses it, such as: headway plan -- trl grpo --config run.yaml"),
        ([], "RUN: is missing; name the model and its trainer"),
        ([""], "RUN: is empty; name the model and its trainer"),
        (["qwen3-4c"], "nearest are qwen3-4B"),
        (["nothing.toml"], "no such file"),
        (["nothing.json"], "is no config.json"),
        (["mixtral-8x7B"], "headway trains llama"),
    ],
)
def test_what_cannot_be_planned_says_what_can(words: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        read_case(words, None, "gb10", ())
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("machine", "asked", "enough"),
    [
        ("8xh100-80", ("layout.nodes=2", "layout.devices=8"), "2x8xh100-80"),
        ("h100-80", ("layout.devices=4",), "4xh100-80"),
        ("8xb200", ("layout.devices=8", "engine.devices=8", "engine.colocated=false"), "2x8xb200"),
        ("gb10", ("layout.nodes=2", "layout.devices=1"), "2xgb10"),
    ],
)
def test_a_machine_that_is_enough_is_named(machine: str, asked: tuple[str, ...], enough: str) -> None:
    with pytest.raises(InputError) as error:
        case("qwen3-4b", *asked, trainer="slime", machine=machine)
    assert str(error.value).endswith(f"such as --machine {enough}")
    assert case("qwen3-4b", *asked, trainer="slime", machine=enough).workload.layout.ranks <= 16


def test_a_model_that_headway_does_not_train_is_planned_under_another_trainer() -> None:
    assert case("mixtral-8x7B", "rollout.max_answer=64", trainer="miles-fsdp").workload.model.experts == 8


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the folder has no config\.json"):
        case(str(tmp_path))


def test_contradictions_of_run_trainer_and_machine(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a RunSpec, which headway's own trainer runs"):
        case(write(tmp_path / "run.toml"), trainer="trl")
    with pytest.raises(InputError, match=r"layout.devices = 8: gb10 has 1 device; "):
        case("qwen3-4b", "layout.devices=8", trainer="fsdp2")
    with pytest.raises(InputError, match=r"runs on a device, and cpu-64gib has none; .* --machine h100-80$"):
        case("qwen3-4b", trainer="miles-fsdp", machine="cpu-64gib")
    with pytest.raises(InputError, match=r"--machine h100-80, or set device=cpu"):
        case("qwen3-4b", trainer="fsdp2", machine="cpu-64gib")
    with pytest.raises(InputError, match="no such key of a workload"):
        case("qwen3-4b", "rollout.max_anwser=1")
