"""Where a model comes from: the four kinds, and every way in which a folder can be unusable."""

import json
import struct
from pathlib import Path

import pytest

from headway.config.sections import ModelSection
from headway.config.source import PACKAGED, from_files, packaged_folder, resolve
from headway.errors import InputError
from headway.facts.shapes import by_name

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 264, "tie_word_embeddings": True,
}  # fmt: skip


def write_safetensors(path: Path, size: int) -> int:
    """A safetensors file with one tensor of that many bytes; returns the size of the file."""
    header = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    return path.stat().st_size


def write_index(folder: Path, *names: str) -> None:
    weight_map = {f"tensor.{at}": name for at, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def folder(tmp_path):
    """A model folder as far as can be told without torch."""
    made = tmp_path / "my-model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "tokenizer.json").write_text("{}")
    write_safetensors(made / "model.safetensors", 1000)
    return made


def find(path, init="pretrained"):
    return resolve(ModelSection(path=str(path), init=init))


def refusal(path, init="pretrained"):
    with pytest.raises(InputError) as error:
        find(path, init)
    return error.value.problems


def test_random_weights_of_a_shape_in_any_case():
    source = find("QWEN3-0.6b", "random")
    assert (source.kind, source.folder, source.files_bytes) == ("random", None, 0)
    assert source.shape == by_name("qwen3-0.6B")


def test_an_unknown_shape_names_the_nearest():
    (problem,) = refusal("qwen3-0.6", "random")
    assert "nearest are qwen3-0.6B" in problem
    assert "smollm2-135M" in refusal(PACKAGED, "random")[0]
    assert "; the shapes are tiny-" in refusal("zzzz", "random")[0]
    assert refusal("", "random")[0].startswith(
        'model.path = "": no shape of that name for init = "random"; the shapes'
    )


def test_a_shape_that_headway_does_not_train_is_refused_and_never_offered():
    (problem,) = refusal("gpt-oss-20B", "random")
    assert problem == (
        "model gpt-oss-20B: model_type 'gpt_oss' is not trained yet; "
        "trained are llama, qwen2, qwen3, qwen3_moe, gemma"
    )
    assert "gpt-oss-20B" not in refusal("gpt-oss-21B", "random")[0]
    assert find("Qwen/Qwen3-4B", "random").shape == by_name("qwen3-4B")


def test_an_empty_path_is_no_folder():
    assert refusal("")[0].startswith('model.path = "": is empty; set smollm2-135m-instruct')


def test_the_packaged_model_is_known_before_it_is_converted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = find("SmolLM2-135M-Instruct")
    assert (source.kind, source.folder) == ("package", tmp_path / "headway" / "models" / PACKAGED)
    assert source.shape.parameters() == by_name("smollm2-135M").parameters()
    assert source.files_bytes == 2 * source.shape.parameters()


def test_the_packaged_model_is_read_from_its_folder_afterwards(tmp_path, monkeypatch, folder):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    packaged_folder().parent.mkdir(parents=True)
    folder.rename(packaged_folder())
    source = find(PACKAGED)
    assert source.kind == "package"
    assert source.files_bytes == (packaged_folder() / "model.safetensors").stat().st_size
    assert source.shape.hidden == 64
    (source.folder / "model.safetensors").write_bytes(b"torn")
    assert refusal(PACKAGED)[0].endswith(f"delete {source.folder}, it is made anew")


def test_the_cache_is_in_the_home_folder_where_nothing_else_is_set(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert packaged_folder() == tmp_path / ".cache" / "headway" / "models" / PACKAGED


def test_a_folder(folder, monkeypatch):
    source = find(folder)
    assert (source.kind, source.folder, source.shape.name) == ("folder", folder, "my-model")
    assert source.files_bytes == (folder / "model.safetensors").stat().st_size
    monkeypatch.chdir(folder.parent)
    assert find("my-model").folder == folder
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find("~/my-model").folder == folder


def test_a_folder_goes_before_a_hub_id(folder, monkeypatch):
    monkeypatch.chdir(folder.parent.parent)
    assert find(f"{folder.parent.name}/my-model").kind == "folder"


def test_shards_are_those_of_the_index(folder):
    (folder / "model.safetensors").unlink()
    size = write_safetensors(folder / "a.safetensors", 10) + write_safetensors(folder / "b.safetensors", 20)
    write_safetensors(folder / "of another model.safetensors", 500)
    write_index(folder, "a.safetensors", "b.safetensors", "a.safetensors")
    assert find(folder).files_bytes == size


def test_a_fetched_hub_model_keeps_its_id_as_name(folder):
    assert from_files("hub", "owner/name", folder).shape.name == "owner/name"


def test_a_hub_id_is_unknown_until_it_is_fetched():
    source = find("Qwen/Qwen2.5-0.5B-Instruct")
    assert (source.kind, source.folder, source.shape, source.files_bytes) == ("hub", None, None, 0)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("./nowhere", "there is no such folder"),
        ("/nowhere/at/all", "there is no such folder"),
        ("a/b/c", "there is no such folder"),
        ("qwen3-0.6b", 'set model.init = "random"'),
        ("gpt2", "no folder of that name, and no hub id"),
        ("own er/model", "no folder of that name, and no hub id"),
    ],
)
def test_paths_that_are_nothing(path, message):
    (problem,) = refusal(path)
    assert problem.startswith(f"model.path = {path}: ")
    assert message in problem


def test_folders_that_are_no_model(tmp_path):
    assert "no config.json" in refusal(tmp_path)[0]
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "LoRA adapter" in refusal(tmp_path)[0]


def test_a_folder_without_weights_and_tokenizer_names_both(folder):
    (folder / "model.safetensors").unlink()
    (folder / "tokenizer.json").unlink()
    weights, tokenizer = refusal(folder)
    assert "no weights" in weights
    assert "no tokenizer" in tokenizer


def test_adapter_weights_are_no_model_weights(folder):
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    assert "no weights" in refusal(folder)[0]


def test_pickled_weights_are_refused_with_the_way_out(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "save_pretrained" in refusal(folder)[0]


def test_missing_and_torn_shards_are_all_named(folder):
    write_index(folder, "model.safetensors", "missing.safetensors", "pointer.safetensors", "bad.safetensors")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    (folder / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a")
    (folder / "bad.safetensors").write_bytes(struct.pack("<Q", 4) + b"[1, ")
    bad, missing, torn, pointer = refusal(folder)
    assert "bad.safetensors has an unreadable header" in bad
    assert "missing.safetensors, named in model.safetensors.index.json, is missing" in missing
    assert f"model.safetensors is torn ({len(whole) - 100} of {len(whole)} bytes)" in torn
    assert "pointer.safetensors is no safetensors file" in pointer


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"weight_map": []}'])
def test_an_unreadable_index(folder, text):
    (folder / "model.safetensors.index.json").write_text(text)
    assert "cannot be read" in refusal(folder)[0]


@pytest.mark.parametrize("header", ["[]", '{"x": {}}', '{"x": {"data_offsets": [0]}}', '{"x": 1}'])
def test_unreadable_headers(folder, header):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    assert "unreadable header" in refusal(folder)[0]
