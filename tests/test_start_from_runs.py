"""A run starts from what another one left behind: a model, or an adapter that goes on training or is merged."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from headway.cli import app
from headway.config.sections import ModelSection
from headway.config.source import resolve
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
output = {tensorboard = false}
"""
STAYS = ("train.lr=0", "train.steps=1", "output.dir=b")
"""A run that leaves behind what it started from."""

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`headway train run.toml`: gives the exit code and all that is printed."""

    def train(*settings: str) -> tuple[int, str]:
        arguments = [part for setting in settings for part in ("--set", setting)]
        monkeypatch.setattr("sys.argv", ["headway", "train", "run.toml", *arguments])
        with pytest.raises(SystemExit) as ended:
            app.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((printed.out + printed.err).split())

    return train


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Command) -> Path:
    """A folder with a base model and a finished LoRA run on it in `runs/a`; the current directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    section = ModelSection(path="tiny-qwen3", init="random", dtype="fp32")
    made = load(resolve(section), section, torch.device("cpu"), seed=1)
    save_model(made.model, made.tokenizer, folder / "base")
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(4) for b in range(4))
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.toml").write_text(SPEC)
    monkeypatch.chdir(folder)
    assert train("output.dir=runs/a")[0] == 0
    return folder


def adapter(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def merged(base: Path, folder: Path) -> dict[str, torch.Tensor]:
    """An adapter merged into its base by peft itself."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    return dict(model.merge_and_unload().named_parameters())


def test_the_base_is_named_as_it_is_seen_from_the_adapter(project: Path) -> None:
    final = project / "runs/a/final"
    config = json.loads((final / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "../../../base"
    record = json.loads((final / "headway.json").read_text())
    assert (record["step"], record["base"]["kind"], record["base"]["path"]) == (2, "folder", "../../../base")
    assert "model.safetensors" in record["base"]["files"]
    for file in final.glob("*.json"):
        assert str(project) not in file.read_text()


@pytest.mark.parametrize("path", ["runs/a", "runs/a/final"])
def test_an_adapter_goes_on_training(project: Path, train: Command, path: str) -> None:
    assert train(f"model.path={path}", *STAYS)[0] == 0
    before, after = adapter(project / "runs/a/final"), adapter(project / "b/final")
    assert any(value.abs().max() > 0 for name, value in before.items() if "lora_B" in name)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((project / "b/final/headway.json").read_text())["base"]["path"] == "../../base"


def test_without_a_lora_section_an_adapter_is_merged_and_all_is_trained(project: Path, train: Command) -> None:
    assert train("model.path=runs/a/final", "lora=none", *STAYS)[0] == 0
    expected = merged(project / "base", project / "runs/a/final")
    model = AutoModelForCausalLM.from_pretrained(project / "b/final")
    base = AutoModelForCausalLM.from_pretrained(project / "base").state_dict()
    moved = [name for name, value in model.named_parameters() if not torch.equal(value, base[name])]
    assert any("q_proj" in name for name in moved)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value, expected[name])
    assert json.loads((project / "b/final/headway.json").read_text()).get("base") is None


def test_a_full_runs_model_is_a_model(project: Path, train: Command) -> None:
    assert train("lora=none", "output.dir=full")[0] == 0
    assert train("model.path=full", "lora=none", *STAYS)[0] == 0
    before, after = (load_file(project / run / "final/model.safetensors") for run in ("full", "b"))
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("lora.rank=8", "lora.rank = 8, the adapter has 4"),
        ("lora.alpha=16.0", "lora.alpha = 16, the adapter has 8"),
        ("lora.targets=attention", "lora.targets = k_proj o_proj q_proj v_proj, the adapter has down_proj"),
    ],
)
def test_another_lora_section_is_refused_with_both_ways_out(
    project: Path, train: Command, setting: str, named: str
) -> None:
    code, shown = train("model.path=runs/a/final", setting, *STAYS)
    assert code == 2
    assert named in shown
    assert "headway export RUN DIR --merge" in shown
    assert not (project / "b").exists()


def test_another_base_is_refused_by_the_name_of_its_file(project: Path, train: Command) -> None:
    weights = load_file(project / "base/model.safetensors")
    first = next(iter(weights))
    weights[first] = weights[first] + 1
    save_file(weights, project / "base/model.safetensors", {"format": "pt"})
    code, shown = train("model.path=runs/a/final", *STAYS)
    assert code == 2
    assert "is not the one that it was trained on: model.safetensors differs" in shown
    assert not (project / "b").exists()


def test_run_and_base_may_be_moved_together_but_not_apart(
    project: Path, train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = project.with_name("elsewhere")
    project.rename(moved)
    monkeypatch.chdir(moved)
    assert train("model.path=runs/a/final", *STAYS)[0] == 0
    (moved / "runs/a").rename(moved / "a")
    code, shown = train("model.path=a/final", "output.dir=c")
    assert code == 2
    assert f"the adapter's base is not at {moved.parent / 'base'}; put it there, or set" in shown


def test_a_run_that_started_from_an_adapter_is_resumed_and_notices_another_one(project: Path, train: Command) -> None:
    assert train("model.path=runs/a/final", *STAYS)[0] == 0
    assert train("model.path=runs/a/final", *STAYS, "train.steps=2")[0] == 0
    saved = adapter(project / "runs/a/final")
    saved = {name: value + 1 for name, value in saved.items()}
    save_file(saved, project / "runs/a/final/adapter_model.safetensors", {"format": "pt"})
    code, shown = train("model.path=runs/a/final", *STAYS, "train.steps=3")
    assert code == 2
    assert "adapter_model.safetensors has other content" in shown


def test_an_adapter_that_peft_wrote(project: Path, train: Command) -> None:
    base = AutoModelForCausalLM.from_pretrained(project / "base")
    made = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, value in made.named_parameters():
            if "lora_B" in name:
                value.add_(0.1)
    made.save_pretrained(project / "foreign")
    code, shown = train("model.path=foreign", *STAYS)
    assert code == 2
    assert "the adapter has q_proj" in shown
    assert train("model.path=foreign", "lora=none", *STAYS)[0] == 0
    expected = merged(project / "base", project / "foreign")
    for name, value in AutoModelForCausalLM.from_pretrained(project / "b/final").named_parameters():
        torch.testing.assert_close(value, expected[name])


def test_a_run_that_has_not_finished_says_how_to_get_its_weights(project: Path, train: Command) -> None:
    (project / "runs/a/final").rename(project / "gone")
    code, shown = train("model.path=runs/a", *STAYS)
    assert code == 2
    assert "has not finished, so it has no final/" in shown
    assert "headway export runs/a DIR" in shown
