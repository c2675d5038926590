"""`headway export`: what is written is what was trained, loads without headway, and harms nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from headway.cli import app
from headway.train.export import export

SPEC = """
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
data = {file = "sums.jsonl", format = "text"}
reward = {kind = "exact", extract = "first-line", format_pattern = "(?s).*[0-9].*", format_weight = 0.5}
rollout = {prompts = 2, samples = 4, max_answer = 6}
train = {steps = 2, lr = 1e-2}
eval = {problems = 2}
memory = {threads = 1}
output = {tensorboard = false, save_every = 1, dir = "a"}
"""
IDS = torch.arange(40, 60).view(2, 10)

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def headway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command of headway in a folder with a RunSpec: gives the exit code and all that is printed."""
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(4) for b in range(4))
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.toml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)

    def headway(command: str, *words: str, sets: tuple[str, ...] = ()) -> tuple[int, str]:
        arguments = [part for setting in sets for part in ("--set", setting)]
        monkeypatch.setattr("sys.argv", ["headway", command, *words, *arguments])
        with pytest.raises(SystemExit) as ended:
            app.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((printed.out + printed.err).split())

    return headway


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("shape", ["tiny-qwen3", "tiny-qwen3-moe"])
def test_a_full_run_is_what_its_final_folder_holds(headway: Command, shape: str) -> None:
    assert headway("train", "run.toml", sets=(f"model.path={shape}",))[0] == 0
    code, shown = headway("export", "a", "out")
    assert code == 0
    assert "the model after step 2" in shown
    final, out = (AutoModelForCausalLM.from_pretrained(name).state_dict() for name in ("a/final", "out"))
    assert final.keys() == out.keys()
    assert all(torch.equal(final[name], out[name]) for name in final)
    fused = [name for name in load_file("out/model.safetensors") if name.endswith("experts.down_proj")]
    assert fused == []  # a mixture's experts one by one, as published models have them
    names = {path.name for path in Path("out").iterdir()}
    assert names >= {"config.json", "generation_config.json", "tokenizer.json", "README.md", "headway.json"}
    expected = logits(AutoModelForCausalLM.from_pretrained("a/final"))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained("out")), expected)


def test_a_lora_run_is_an_adapter_or_merged(headway: Command) -> None:
    assert headway("train", "run.toml", sets=("lora.rank=4",))[0] == 0
    assert headway("export", "a", "merged", "--merge")[0] == 0
    assert headway("export", "a", "adapter")[0] == 0
    final, out = (load_file(f"{name}/adapter_model.safetensors") for name in ("a/final", "adapter"))
    assert final.keys() == out.keys()
    assert all(torch.equal(final[name], out[name]) for name in final)
    of_final, of_out = (json.loads(Path(name, "adapter_config.json").read_text()) for name in ("a/final", "adapter"))
    assert set(of_final["target_modules"]) == set(of_out["target_modules"])
    assert {key: of_final[key] for key in ("r", "lora_alpha", "base_model_name_or_path", "inference_mode")} == {
        key: of_out[key] for key in ("r", "lora_alpha", "base_model_name_or_path", "inference_mode")
    }
    # the base again: the merged model without what the adapter adds
    merged = AutoModelForCausalLM.from_pretrained("merged")
    base = AutoModelForCausalLM.from_pretrained("merged")
    with torch.no_grad():
        for name, value in base.named_parameters():
            layer = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{layer}.lora_A.weight" in out:
                value -= 8 * out[f"{layer}.lora_B.weight"] @ out[f"{layer}.lora_A.weight"]  # alpha 32 / rank 4
    adapted = logits(PeftModel.from_pretrained(base, "adapter"))
    torch.testing.assert_close(logits(merged), adapted, rtol=1e-4, atol=1e-5)


def test_an_earlier_step_that_was_kept_and_one_that_was_not(headway: Command) -> None:
    headway("train", "run.toml", sets=("train.steps=3",))
    assert headway("export", "a", "two", "--step", "2")[0] == 0
    headway("export", "a", "three")
    two, three = (load_file(f"{name}/model.safetensors") for name in ("two", "three"))
    assert any(not torch.equal(two[name], three[name]) for name in two)
    code, shown = headway("export", "a", "one", "--step", "1")
    assert code == 2
    assert "--step 1: the run kept the weights after steps 2, 3" in shown
    assert not Path("one").exists()


def test_what_is_there_is_kept_unless_an_export_wrote_it(headway: Command) -> None:
    headway("train", "run.toml")
    Path("out").mkdir()
    Path("out/notes.txt").write_text("mine")
    for words, said in (((), "is not empty"), (("--overwrite",), "holds files that no export wrote")):
        code, shown = headway("export", "a", "out", *words)
        assert code == 2
        assert said in shown
    assert [path.name for path in Path("out").iterdir()] == ["notes.txt"]
    Path("empty").mkdir()
    assert headway("export", "a", "empty")[0] == 0
    assert headway("export", "a", "empty")[0] == 2
    assert headway("export", "a", "empty", "--overwrite")[0] == 0
    for own in ("a", "a/final", "a/checkpoints/x", "."):
        code, shown = headway("export", "a", own, "--overwrite")
        assert code == 2
        assert "belongs to the run" in shown
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_a_large_model_is_in_several_files(headway: Command) -> None:
    headway("train", "run.toml")
    found = export(Path("a"), Path("out"), lambda _: None, shard=100_000)
    assert len([name for name in found.files if name.startswith("model-0000")]) > 2
    assert "model.safetensors.index.json" in found.files
    expected = logits(AutoModelForCausalLM.from_pretrained("a/final"))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained("out")), expected)


def test_a_finished_run_needs_no_checkpoints(headway: Command, tmp_path: Path) -> None:
    headway("train", "run.toml")
    (tmp_path / "a/checkpoints").rename(tmp_path / "gone")
    assert headway("export", "a", "out")[0] == 0
    final, out = load_file("a/final/model.safetensors"), load_file("out/model.safetensors")
    assert all(torch.equal(final[name], out[name]) for name in final)


def test_no_run_and_a_torn_checkpoint_write_nothing(headway: Command, tmp_path: Path) -> None:
    code, shown = headway("export", ".", "out")
    assert code == 2
    assert "is no folder of a run" in shown
    headway("train", "run.toml")
    (tmp_path / "a/checkpoints/step-000002/model.safetensors").write_bytes(b"torn")
    code, shown = headway("export", "a", "out")
    assert code == 2
    assert "model.safetensors has 4 of" in shown
    assert not (tmp_path / "out").exists()


def test_the_card_has_the_runs_facts_and_no_path(headway: Command, tmp_path: Path) -> None:
    headway("train", "run.toml", sets=("lora.rank=4",))
    code, shown = headway("export", "a", "out", "--json")
    assert code == 0
    told = json.loads(shown)
    assert (told["kind"], told["step"], told["dtype"]) == ("adapter", 2, "fp32")
    card = (tmp_path / "out/README.md").read_text()
    assert str(tmp_path) not in card
    for fact in (
        "library_name: peft",
        "| data | `sums.jsonl` (SHA-256",
        "LoRA, rank 4",
        "held-out score after step 2",
    ):
        assert fact in card
    tokenizer = AutoTokenizer.from_pretrained("out")
    assert tokenizer.decode(tokenizer("1 + 2")["input_ids"]).endswith("1 + 2")
