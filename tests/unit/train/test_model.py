"""Loading, saving and the views of a model that training uses, for every family."""

import gc
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from headway.config.sections import ModelSection
from headway.config.source import ModelSource, from_files, resolve
from headway.errors import InputError
from headway.facts.shapes import TRAINED, ModelShape, by_name, table
from headway.train.memory import configure, trim
from headway.train.model import (
    POSITIONS,
    backbone,
    config_for,
    head_weight,
    load,
    prepare,
    quiet,
    save_model,
    set_checkpointing,
)
from headway.train.tokenizer import byte_tokenizer

SHAPES = ("tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-qwen3-moe", "tiny-gemma")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CPU = torch.device("cpu")
IDS = torch.randint(0, 256, (2, 13), generator=torch.Generator().manual_seed(0))


def random(name, dtype="fp32", seed=1):
    section = ModelSection(path=name, init="random", dtype=dtype)
    return load(resolve(section), section, CPU, seed)


def load_folder(folder, dtype="fp32", attention="sdpa"):
    section = ModelSection(path=str(folder), dtype=dtype, attention=attention)
    return load(resolve(section), section, CPU, seed=0)


@pytest.fixture
def folder(tmp_path):
    """A saved tiny-llama."""
    loaded = random("tiny-llama")
    save_model(loaded.model, loaded.tokenizer, tmp_path / "saved")
    return tmp_path / "saved"


def rewrite_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_saved_and_loaded_has_the_same_logits_as_before_and_as_transformers_own(tmp_path, name, dtype):
    first = random(name, dtype)
    save_model(first.model, first.tokenizer, tmp_path / "saved")
    again = load_folder(tmp_path / "saved", dtype)
    with quiet():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=DTYPES[dtype])
    expected = first.model(input_ids=IDS).logits
    assert torch.equal(again.model(input_ids=IDS).logits, expected)
    assert torch.equal(theirs(input_ids=IDS).logits, expected)
    assert {value.dtype for value in again.model.parameters()} == {DTYPES[dtype]}
    assert replace(again.shape, name=name, context=0) == by_name(name)
    assert again.shape.context == POSITIONS
    assert again.tokenizer.encode("hi<|im_end|>") == [104, 105, 259]


@pytest.mark.parametrize("name", SHAPES)
def test_a_file_in_one_dtype_loads_in_another_by_plain_rounding(tmp_path, name):
    first = random(name, "fp32")
    save_model(first.model, first.tokenizer, tmp_path / "saved")
    rounded = load_folder(tmp_path / "saved", "bf16").model
    for (key, value), (_, expected) in zip(rounded.named_parameters(), first.model.named_parameters(), strict=True):
        assert torch.equal(value, expected.to(torch.bfloat16)), key


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [shape for shape in table().values() if shape.family in TRAINED], ids=lambda shape: shape.name
)
def test_parameters_of_the_whole_table(shape):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_for(shape))
    assert sum(value.numel() for value in model.parameters()) == shape.parameters()


BIASED = {
    "llama": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "qwen3": {"qkv_bias": True, "output_bias": True},
    "gemma": {"qkv_bias": True, "output_bias": True},
}


@pytest.mark.parametrize("family", BIASED)
def test_parameters_with_every_bias_and_back_from_the_config(family):
    shape: ModelShape = replace(by_name(f"tiny-{family}"), **BIASED[family])
    section = ModelSection(path=shape.name, dtype="fp32")
    loaded = load(ModelSource("random", shape.name, None, shape, 0), section, CPU, 0)
    assert sum(value.numel() for value in loaded.model.parameters()) == shape.parameters()


def test_the_seed_decides_random_weights_and_global_randomness_is_left_alone():
    before = torch.get_rng_state()
    first, same, other = (random("tiny-qwen3-moe", seed=seed).model.state_dict() for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], same[key]) for key in first)
    matrices = [key for key in first if first[key].ndim > 1]
    assert matrices
    assert not any(torch.equal(first[key], other[key]) for key in matrices)


def test_a_vocabulary_below_the_bytes_is_refused():
    shape = replace(by_name("tiny-llama"), vocab=100)
    with pytest.raises(InputError, match="100 is below 260"):
        load(ModelSource("random", "x", None, shape, 0), ModelSection(path="x"), CPU, 0)


def test_parameters_do_not_depend_on_the_file_after_loading(folder):
    model = load_folder(folder).model
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with (folder / "model.safetensors").open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(size // 2)
        file.write(bytes(size - size // 2))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", DTYPES)
def test_loading_peaks_at_the_weights(tmp_path, dtype):
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        pytest.skip("needs Linux: peak resident memory is reset through /proc/self/clear_refs")
    configure()
    first = random("small-llama", "fp32")
    save_model(first.model, first.tokenizer, tmp_path / "saved")
    weights = first.shape.parameters() * DTYPES[dtype].itemsize
    del first
    load_folder(tmp_path / "saved", dtype)  # whatever is loaded only once
    gc.collect()
    trim()
    reset.write_text("5")
    before = resident("VmRSS")
    loaded = load_folder(tmp_path / "saved", dtype)
    assert resident("VmHWM") - before < weights + 8 * 2**20
    assert loaded.shape.parameters() * DTYPES[dtype].itemsize == weights


def resident(key: str) -> int:
    """Bytes of a line of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


def test_sharded_files_load_through_their_index(folder):
    whole = load_folder(folder).model.state_dict()
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    index = {}
    for shard, part in enumerate((names[::2], names[1::2])):
        save_file({name: weights[name] for name in part}, folder / f"model-{shard}.safetensors")
        index |= dict.fromkeys(part, f"model-{shard}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    again = load_folder(folder).model.state_dict()
    assert all(torch.equal(again[key], whole[key]) for key in whole)


def test_missing_and_misshapen_tensors_are_refused_by_name(folder):
    def change(weights):
        del weights["model.norm.weight"]
        weights["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 3)

    rewrite_weights(folder, change)
    with pytest.raises(InputError, match=r"2 tensors.*model\.norm\.weight.*layers\.1\.mlp\.up_proj"):
        load_folder(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer cannot be loaded"),
        (
            lambda folder: (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}'),
            "no end-of-sequence token",
        ),
    ],
)
def test_unusable_tokenizers_are_refused(folder, change, message):
    change(folder)
    with pytest.raises(InputError, match=message):
        load_folder(folder)


def test_a_tokenizer_without_padding_pads_with_its_end_token(folder):
    file = folder / "tokenizer_config.json"
    keys = json.loads(file.read_text())
    del keys["pad_token"]
    file.write_text(json.dumps(keys))
    tokenizer = load_folder(folder).tokenizer
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 259


def test_the_gradient_of_a_token_that_shares_its_id_with_padding_is_kept(folder):
    model = load_folder(folder).model
    ids = torch.tensor([[5, model.config.pad_token_id, 6]])
    embedding = model.get_input_embeddings()
    embedded = embedding(ids)
    embedded.sum().backward()
    assert embedding.weight.grad[model.config.pad_token_id].tolist() == [1.0] * embedded.shape[-1]


@pytest.mark.parametrize("name", SHAPES)
def test_backbone_and_head_are_the_model(name):
    model = random(name).model
    hidden = backbone(model)(input_ids=IDS, use_cache=False).last_hidden_state
    torch.testing.assert_close(hidden @ head_weight(model).T, model(input_ids=IDS).logits)
    assert (head_weight(model) is model.get_input_embeddings().weight) == by_name(name).tied


@pytest.mark.parametrize("name", SHAPES)
def test_padding_on_the_right_changes_nothing_before_it(name):
    model = random(name).model
    short = backbone(model)(input_ids=IDS[:1, :7], use_cache=False).last_hidden_state
    ids = IDS.clone()
    ids[0, 7:] = model.config.pad_token_id
    padded = backbone(model)(input_ids=ids, use_cache=False).last_hidden_state
    torch.testing.assert_close(padded[:1, :7], short)


class Shapes(TorchDispatchMode):
    """The shapes of everything that operators return."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.seen |= {tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        return result


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_is_as_large_as_sequence_times_sequence(tmp_path, name):
    length = 37
    ids = torch.randint(0, 256, (3, length))
    first = random(name)
    save_model(first.model, first.tokenizer, tmp_path / "saved")
    seen = {}
    for attention in ("sdpa", "eager"):
        model = load_folder(tmp_path / "saved", attention=attention).model
        set_checkpointing(model, True)
        with Shapes() as shapes:
            backbone(model)(input_ids=ids, use_cache=False).last_hidden_state.square().mean().backward()
        seen[attention] = [shape for shape in shapes.seen if shape.count(length) > 1]
    assert seen["sdpa"] == []
    assert seen["eager"] != []  # the check sees such a tensor where there is one


@pytest.mark.parametrize("name", SHAPES)
def test_checkpointing_keeps_less_and_changes_no_gradient(name):
    kept, grads = {}, {}
    model = random(name).model
    for on in (False, True):
        set_checkpointing(model, on)
        model.zero_grad(set_to_none=True)
        sizes = []

        def pack(tensor, sizes=sizes):
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = backbone(model)(input_ids=IDS, use_cache=False).last_hidden_state.square().mean()
        loss.backward()
        kept[on] = sum(sizes)
        grads[on] = {key: value.grad for key, value in model.named_parameters() if value.grad is not None}
    assert kept[True] < kept[False] / 3
    assert grads[True].keys() == grads[False].keys()
    for key, grad in grads[False].items():
        torch.testing.assert_close(grads[True][key], grad, msg=key)


def test_saving_replaces_the_folder_and_leaves_nothing_beside_it(folder):
    (folder / "stale.txt").write_text("of an earlier run")
    other = random("tiny-gemma")
    save_model(other.model, other.tokenizer, folder)
    assert not (folder / "stale.txt").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["saved"]
    assert load_folder(folder).shape.family == "gemma"


def test_a_failed_save_keeps_the_folder_that_was_there(folder):
    class Broken:
        def save_pretrained(self, target):
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        save_model(random("tiny-gemma").model, Broken(), folder)
    assert [path.name for path in folder.parent.iterdir()] == ["saved"]
    assert load_folder(folder).shape.family == "llama"


def test_prepare_has_nothing_to_do_for_folders_and_random_weights(folder):
    for source in (from_files("folder", "x", folder), resolve(ModelSection(path="tiny-llama", init="random"))):
        assert prepare(source, pytest.fail) == source


def test_an_unreachable_hub_is_an_input_error(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    said = []
    with pytest.raises(InputError, match=r"owner/model: could not be fetched.*set model\.path to a folder"):
        prepare(resolve(ModelSection(path="owner/model")), said.append)
    assert "owner/model" in said[0]


def test_the_byte_tokenizer_serves_every_random_model():
    assert random("tiny-gemma").tokenizer.encode("ab") == byte_tokenizer().encode("ab")


def test_loading_and_saving_print_nothing(folder, capfd):
    loaded = load_folder(folder)
    save_model(loaded.model, loaded.tokenizer, folder)
    assert capfd.readouterr() == ("", "")
