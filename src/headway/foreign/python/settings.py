"""A trainer's settings as TRL's reader takes them from flags and YAML: one mapping for all three."""

import re
from pathlib import Path

from msgspec import field
from msgspec.structs import replace

from headway.foreign import trl
from headway.foreign.command import Line
from headway.foreign.found import Found
from headway.foreign.gather import Got
from headway.foreign.launcher import Processes
from headway.foreign.python.trainers import Made
from headway.foreign.shell.values import Hole, Origin, Word

UNSLOTH: dict[str, tuple[str, object]] = {
    "micro_batch": ("per_device_train_batch_size", 4), "grad_accum": ("gradient_accumulation_steps", 2),
    "optimizer": ("optim", "adamw_8bit"),
}  # fmt: skip
"""What Unsloth puts in place of TRL's defaults (unsloth 015bdef0d9, models/rl.py)."""
PACKED = re.compile(r"(?:-unsloth)?-bnb-4bit$")
"""The end of the name of a checkpoint that bitsandbytes has packed."""


class Said(trl.Options):
    """What a script says of a trainer, with the place of each setting."""

    unknown: dict[str, str] = field(default_factory=dict)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)

    def get(self, *names: str) -> Got:
        """What is said of the first of these settings that is there."""
        for name in names:
            place = self.places.get(name)
            at = Origin(*place) if place is not None else None
            if name in self.unknown:
                word = None
                if name == "model_name_or_path" and name in self.table:
                    word = Word((Hole(self.unknown[name], "folder"), str(self.table[name])), at)
                return Got(given=True, why=self.unknown[name], at=at, word=word)
            if name in self.table:
                return Got(self.table[name], given=True, at=at)
        return Got(why=self.hidden) if self.hidden else Got()


def found_of(made: Made, started: Processes, path: Path, root: Path | None, environment: dict[str, object]) -> Found:
    """The record of a run."""
    system = "unsloth" if made.unsloth else "hf" if made.kind == "trainer" else "trl"
    table = dict(made.table)
    if isinstance(name := table.get("model_name_or_path"), str):
        table["model_name_or_path"] = PACKED.sub("", name)
        if PACKED.search(name):
            table["load_in_4bit"] = table.get("load_in_4bit", True)
    if made.unsloth:
        _unsloth(made, table, environment)
    elif not _is_half(made, table):
        table["no_bf16"] = True
    own = {} if made.plain or not made.unsloth or made.hidden else {
        key: value for key, (name, value) in UNSLOTH.items() if name not in table and name not in made.unknown
    }  # fmt: skip
    table |= {UNSLOTH[key][0]: value for key, value in own.items()}
    said = Said(Line({}), table, "", made.hidden, unknown=made.unknown, places=made.places)
    found = trl.from_options(said, started, made.kind, path.name, path.resolve(), root)
    settings, derived = dict(found.settings), dict(found.derived)
    settings["system"] = system
    if made.plain and settings.get("recompute") is None:
        derived.pop("recompute", None)
    for key in own:
        derived[key], settings[key] = settings[key], None
    unknown = dict(found.unknown)
    if found.value("model_name") is None and not found.model:
        why = unknown.get("model_name") or "nothing gives it a name, such as --model_name_or_path Qwen/Qwen3-0.6B"
        unknown |= {"model_name": why, "num_layers": why}
        for key in ("model_name", "num_layers"):
            settings.pop(key, None)
    flags = {**found.flags, "script_kind": (made.kind,)}
    return replace(
        found, system=system, settings=settings, derived=derived, unknown=unknown, flags=flags,
        at=Origin(made.file, made.line), notes=(*found.notes, *_notes(made, table, started)),
    )  # fmt: skip


def _is_half(made: Made, table: dict[str, object]) -> bool:
    """Whether products run in half precision: TRL's arguments say so by default, transformers' do not."""
    if any(table.get(name) is True or name in made.unknown for name in ("bf16", "fp16")):
        return True
    if str(table.get("dtype", "")).rpartition(".")[2] in ("bfloat16", "float16", "auto", "bf16", "fp16"):
        return True
    return not made.plain and table.get("bf16") is None


def _unsloth(made: Made, table: dict[str, object], environment: dict[str, object]) -> None:
    """What Unsloth's model decides for the trainer."""
    longest = table.get("model_max_seq_length")
    length = next((name for name in ("max_length", "max_seq_length") if table.get(name) is not None), None)
    if made.kind in trl.SAMPLING:
        table.setdefault("vllm_max_model_length", longest)
    elif length is None and isinstance(longest, int):
        table["max_length"] = longest
        if "model_max_seq_length" in made.places:
            made.places["max_length"] = made.places["model_max_seq_length"]
    table.setdefault("dtype", "bfloat16")
    if "unsloth_checkpoints" in table and made.table.get("gradient_checkpointing") is not True:
        table["gradient_checkpointing"] = bool(table["unsloth_checkpoints"])
        made.places.setdefault(
            "gradient_checkpointing", made.places.get("unsloth_checkpoints", (made.file, made.line))
        )
    if table.get("fast_inference") is True and made.kind in trl.SAMPLING:
        table |= {"use_vllm": True, "vllm_mode": "colocate"}
        table["vllm_gpu_memory_utilization"] = table.get("gpu_memory_utilization", 0.5)
        for ours, theirs in (
            ("use_vllm", "fast_inference"),
            ("vllm_gpu_memory_utilization", "gpu_memory_utilization"),
        ):
            if theirs in made.places:
                made.places[ours] = made.places[theirs]
        if str(environment.get("UNSLOTH_VLLM_STANDBY", "0")) == "1":
            table["unsloth_standby"] = True
    elif made.kind in trl.SAMPLING:
        table["use_vllm"] = False


def _notes(made: Made, table: dict[str, object], started: Processes) -> list[str]:
    notes = list(made.notes)
    if not started.kind:
        notes.append(
            "python alone starts one process, planned on one device; accelerate launch or torchrun start more: plan "
            "that command, behind --"
        )
    spread = table.get("device_map")
    if spread in ("auto", "balanced", "balanced_low_0") and not made.unsloth:
        where = made.places.get("device_map", (made.file, made.line))
        notes.append(
            f'{where[0]} line {where[1]}: device_map="{spread}" spreads the model over all devices that are seen; '
            "planned is one device, as where CUDA_VISIBLE_DEVICES names one"
        )
    if made.kind == "trainer" and "max_length" in table and "max_length" in made.places:
        notes.append(
            f"{made.places['max_length'][0]} line {made.places['max_length'][1]}: samples are taken to have at most "
            f"{table['max_length']} tokens, the longest that the script tells a tokenizer"
        )
    return notes
