"""`headway export`: a run's weights as folders that transformers and peft load, with the values that were trained."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from headway.cli import app
from headway.config.sections import ModelSection
from headway.config.source import resolve
from headway.train import export as exporting
from headway.train.model import load, save_model

SPEC = """
model = {path = "base", dtype = "fp32"}
lora = {rank = 4, alpha = 8.0}
data = {file = "sums.jsonl", format = "text"}
reward = {kind = "exact", extract = "first-line", format_pattern = "(?s).*[0-9].*", format_weight = 0.5}
rollout = {prompts = 2, samples = 4, max_answer = 6}
train = {steps = 2, lr = 1e-2}
eval = {problems = 0}
memory = {threads = 1}
output = {tensorboard = false, save_every = 1, dir = "runs/a"}
"""

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def headway(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`headway ...`: gives the exit code and what it printed on standard output."""

    def headway(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["headway", *words])
        with pytest.raises(SystemExit) as ended:
            app.main()
        printed = capsys.readouterr()
        code = int(ended.value.code or 0)
        return code, printed.out if code == 0 else " ".join((printed.out + printed.err).split())

    return headway


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a base model, data and a RunSpec; the current directory."""
    section = ModelSection(path="tiny-llama", init="random", dtype="fp32")
    made = load(resolve(section), section, torch.device("cpu"), seed=1)
    save_model(made.model, made.tokenizer, tmp_path / "base")
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(4) for b in range(4))
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.toml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lora(project: Path, headway: Command) -> Path:
    assert headway("train", "run.toml")[0] == 0
    return project


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


def test_an_adapter_is_what_the_run_trained_and_peft_loads_it(lora: Path, headway: Command) -> None:
    code, text = headway("export", "runs/a", "out", "--json")
    assert code == 0
    told = json.loads(text)
    assert (told["kind"], told["step"]) == ("adapter", 2)
    assert set(told["files"]) >= {"README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"}
    written, trained = (load_file(lora / folder / "adapter_model.safetensors") for folder in ("out", "runs/a/final"))
    assert same(written, trained)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(lora / "base"), lora / "out")
    assert any(value.abs().sum() > 0 for name, value in model.named_parameters() if "lora_B" in name)


def test_a_merged_model_is_the_one_that_peft_merges_and_generates(lora: Path, headway: Command) -> None:
    assert headway("export", "runs/a", "out", "--merge")[0] == 0
    model = AutoModelForCausalLM.from_pretrained(lora / "out")
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(lora / "base"), lora / "runs/a/final")
    assert same(dict(model.named_parameters()), dict(peft.merge_and_unload().named_parameters()))
    tokens = AutoTokenizer.from_pretrained(lora / "out")("1 + 2 =", return_tensors="pt")
    assert model.generate(**tokens, max_new_tokens=3, do_sample=False).shape[1] > tokens["input_ids"].shape[1]


def test_a_full_run_is_written_whole_and_in_several_files_where_it_is_large(
    project: Path, headway: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert headway("train", "run.toml", "--set", "lora=none")[0] == 0
    found = exporting.export(project / "runs/a", project / "out", print, shard="200KB")
    assert found.kind == "model"
    assert sum(name.startswith("model-") for name in found.files) > 1
    assert "model.safetensors.index.json" in found.files
    written = AutoModelForCausalLM.from_pretrained(project / "out")
    final = AutoModelForCausalLM.from_pretrained(project / "runs/a/final")
    assert same(dict(written.named_parameters()), dict(final.named_parameters()))


def test_the_weights_after_an_earlier_step(lora: Path, headway: Command) -> None:
    assert headway("export", "runs/a", "first", "--step", "1")[0] == 0
    assert headway("export", "runs/a", "last")[0] == 0
    first, last = (load_file(lora / folder / "adapter_model.safetensors") for folder in ("first", "last"))
    assert first.keys() == last.keys()
    assert not same(first, last)
    code, text = headway("export", "runs/a", "none", "--step", "7")
    assert (code, not (lora / "none").exists()) == (2, True)
    assert "1, 2" in text


def test_the_card_tells_what_was_trained_and_no_path_of_this_machine(lora: Path, headway: Command) -> None:
    assert headway("export", "runs/a", "out", "--merge")[0] == 0
    card = (lora / "out/README.md").read_text()
    for told in ("library_name: transformers", "`base`", "`sums.jsonl`", "2 of 2", "LoRA, rank 4", "[rollout]"):
        assert told in card
    assert str(lora) not in card


def test_a_moved_run_exports(lora: Path, headway: Command) -> None:
    (lora / "runs/a").rename(lora / "elsewhere")
    assert headway("export", "elsewhere", "out", "--merge")[0] == 0


def test_another_base_is_refused_by_the_name_of_its_file(lora: Path, headway: Command) -> None:
    weights = lora / "base/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    code, text = headway("export", "runs/a", "out", "--merge")
    assert (code, (lora / "out").exists()) == (2, False)
    assert "model.safetensors" in text
    assert "--base" in text


def test_a_folder_with_something_in_it_stays(lora: Path, headway: Command) -> None:
    (lora / "out").mkdir()
    (lora / "out/mine.txt").write_text("mine")
    assert headway("export", "runs/a", "out")[0] == 2
    code, text = headway("export", "runs/a", "out", "--overwrite")
    assert (code, (lora / "out/mine.txt").read_text()) == (2, "mine")
    assert "no export wrote" in text
    assert headway("export", "runs/a", "new")[0] == 0
    assert headway("export", "runs/a", "new")[0] == 2
    assert headway("export", "runs/a", "new", "--overwrite", "--merge")[0] == 0
    assert not list(lora.glob(".new*"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nothing", "out"), "is no folder of a run"),
        (("runs/a", "runs/a"), "belongs to the run"),
        (("runs/a", "base"), "is its base model"),
        (("runs/a", "run.toml"), "is a file"),
        (("runs/a", "out", "--base", "gone"), "no such folder"),
    ],
)
def test_what_cannot_be_exported(lora: Path, headway: Command, words: tuple[str, ...], told: str) -> None:
    code, text = headway("export", *words)
    assert code == 2
    assert told in text
    assert "Traceback" not in text
    assert not (lora / "out").exists()
