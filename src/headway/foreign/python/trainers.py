"""The trainer that a script starts -> the settings of TRL's command line, with places, what is unknown, and notes."""

import ast
import re
from typing import Any

from msgspec import Struct, field

from headway.errors import InputError
from headway.foreign.python import models
from headway.foreign.python.builtins import HIDDEN
from headway.foreign.python.heavier import heavier
from headway.foreign.python.state import LENGTHS as NAMES
from headway.foreign.python.state import Event
from headway.foreign.python.statements import Statements
from headway.foreign.python.values import (
    MISSING,
    Either,
    Func,
    Missing,
    Obj,
    Ref,
    Scope,
    Text,
    Unknown,
    either,
    is_plain,
    options,
    reason,
)

KINDS = {
    "GRPOTrainer": "grpo", "RLOOTrainer": "rloo", "PPOTrainer": "ppo", "PPOv2Trainer": "ppo",
    "OnlineDPOTrainer": "online_dpo", "XPOTrainer": "online_dpo", "NashMDTrainer": "online_dpo", "DPOTrainer": "dpo",
    "KTOTrainer": "kto", "BCOTrainer": "kto", "ORPOTrainer": "orpo", "CPOTrainer": "cpo", "RewardTrainer": "reward",
    "GKDTrainer": "gkd", "SFTTrainer": "sft", "UnslothTrainer": "sft", "IterativeSFTTrainer": "sft",
    "Trainer": "trainer", "Seq2SeqTrainer": "trainer", "PRMTrainer": "reward", "GSPOTrainer": "grpo",
}  # fmt: skip
"""Trainers that are read. `trainer` is transformers' own."""
INSIDE = {
    "GRPO": "grpo", "RLOO": "rloo", "OnlineDPO": "online_dpo", "(?<![A-Z])DPO": "dpo", "(?<![A-Z])KTO": "kto",
    "(?<![A-Z])PPO": "ppo", "(?<![A-Z])SFT": "sft",
}  # fmt: skip
"""Trainers that others have made of TRL's, by what their names contain."""
HEAVIEST = (
    "ppo", "online_dpo", "grpo", "rloo", "gkd", "dpo", "kto", "orpo", "cpo", "reward", "sft", "trainer"
)  # fmt: skip
"""Which is planned where the script does not decide: those that generate and have further models first."""
LENGTHS = ("max_length", "max_seq_length", "model_max_length", "block_size", "cutoff_len")


class Made(Struct):
    """A trainer's settings by the names that TRL gives them, all known; `unknown` tells why others are not."""

    kind: str
    name: str
    file: str
    line: int
    table: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hidden: str = ""
    unsloth: bool = False
    plain: bool = False
    """The arguments are transformers' own, with its defaults."""


def trainers(events: list[Event]) -> list[tuple[Event, Obj, bool]]:
    """The trainers that a script makes, in order, each with whether it is told to train."""
    trained = {each.what.serial: each for each in events if each.kind == "train" and isinstance(each.what, Obj)}
    found = []
    for each in events:
        if each.kind != "made" or not isinstance(each.what, Obj) or kind_of(each.what) is None:
            continue
        found.append((each, each.what, each.what.serial in trained))
    return found


def kind_of(trainer: Obj) -> str | None:
    """Which trainer it is; None for those that train no language model as TRL or transformers do.

    >>> kind_of(Obj("trl.GRPOTrainer")), kind_of(Obj("tokenizers.trainers.BpeTrainer"))
    ('grpo', None)
    """
    if trainer.path.partition(".")[0] in ("pytorch_lightning", "lightning", "tokenizers", "pl", "L"):
        return None
    if trainer.last in KINDS:
        return KINDS[trainer.last]
    return next((kind for name, kind in INSIDE.items() if re.search(name, trainer.last)), None)


def chosen(found: list[tuple[Event, Obj, bool]]) -> tuple[Event, Obj, list[str]]:
    """The trainer that is planned: the last that trains; among those of which a condition decides, the heaviest."""
    candidates = [each for each in found if each[2]] or found
    plain = [each for each in candidates if not each[0].when]
    open_ = [each for each in candidates if each[0].when]
    if open_ and (not plain or found.index(open_[-1]) > found.index(plain[-1])):
        pick = min(open_, key=lambda each: HEAVIEST.index(kind_of(each[1]) or "trainer"))
    else:
        pick = plain[-1]
    notes = []
    for event, trainer, _ in candidates:
        if event is not pick[0]:
            why = f", {event.when}" if event.when else ""
            notes.append(
                f"{event.file} line {event.line}: {trainer.last} is another run{why}; planned is {pick[1].last} of "
                f"line {pick[0].line}; keep one of them to plan the other"
            )
    if not pick[2]:
        notes.append(f"{pick[0].file} line {pick[0].line}: no {pick[1].last}.train() is seen; it is taken to train")
    return pick[0], pick[1], notes


def made_of(run: Statements, event: Event, trainer: Obj, top: Scope, tree: ast.Module) -> Made:
    """The settings of one trainer."""
    kind = kind_of(trainer) or "trainer"
    config = _config(trainer)
    said: dict[str, Any] = {}
    made = Made(kind, trainer.last, event.file, event.line)
    if trainer.last not in KINDS:
        made.notes.append(f"{event.file} line {event.line}: {trainer.last} is planned as TRL's own {kind} trainer")
    _of_config(made, said, config)
    _of_trainer(made, said, trainer)
    if kind == "ppo" and "mini_batch_size" in said:
        said.setdefault("per_device_train_batch_size", said["mini_batch_size"])
    model = trainer.kwargs.get("model", MISSING)
    if isinstance(model, Missing):
        others = [each for each in trainer.args if each is not config]
        model = others[0] if others else trainer.kwargs.get("model_init", MISSING)
    if isinstance(model, Func):
        model = run.follow(model, [], {}, event.line)
    found = models.of_model(model)
    _adapters(found, trainer)
    _defaults_of_loading(made, said, found)
    made.unsloth = found.unsloth or trainer.path.startswith("unsloth.")
    made.notes += found.notes
    checkpointed = said.get("gradient_checkpointing") is True
    said |= {
        name: value for name, value in found.table.items() if name != "gradient_checkpointing" or not checkpointed
    }
    made.places |= {name: at for name, at in found.places.items() if name not in made.places}
    length = next((name for name in LENGTHS if name in said), "")
    if kind == "trainer" and length:
        said.setdefault("max_length", said[length])
        made.places.setdefault("max_length", made.places.get(length, (made.file, made.line)))
    elif kind == "trainer":
        _length(run, made, said, top, tree)
    _resolved(made, said)
    _more_models(made, trainer)
    return made


def _config(trainer: Obj) -> Any:
    """The trainer's arguments: an object of a class called Config or Arguments, or one of several."""
    for name in ("args", "config"):
        if name in trainer.kwargs:
            return trainer.kwargs[name]
    for each in trainer.args:
        names = [one.last for one in options(each) if isinstance(one, Obj)]
        if names and all(name.endswith(("Config", "Arguments")) and "Lora" not in name for name in names):
            return each
    return None


def _of_config(made: Made, said: dict[str, Any], config: Any) -> None:
    """What the arguments say."""
    if isinstance(config, Either):
        tables = []
        for each in config.options:
            one: dict[str, Any] = {}
            _of_config(made, one, each)
            tables.append(one)
        for name in dict.fromkeys(name for table in tables for name in table):
            said[name] = either((table.get(name, MISSING) for table in tables), config.why)
        return
    if isinstance(config, Unknown | Text):
        made.hidden = config.why
        return
    if not isinstance(config, Obj):
        return
    made.plain |= config.last in ("TrainingArguments", "Seq2SeqTrainingArguments")
    given = {**config.kwargs, **config.attrs}
    if HIDDEN in given:
        made.hidden = reason(given.pop(HIDDEN))
    made.places |= config.places
    said |= given
    start = given.get("model_init_kwargs")
    for one in options(start):
        if isinstance(one, dict):
            for name in ("dtype", "torch_dtype", "attn_implementation", "load_in_4bit", "device_map"):
                if name in one:
                    ours = "dtype" if name == "torch_dtype" else name
                    said[ours] = one[name] if one is start else either((one[name], MISSING), reason(start))
                    made.places.setdefault(ours, made.places.get("model_init_kwargs", (config.file, config.line)))
            if "quantization_config" in one:
                found = models.Found()
                models.quantization(found, one["quantization_config"], (config.file, config.line))
                said |= found.table
    said.pop("model_init_kwargs", None)


def _of_trainer(made: Made, said: dict[str, Any], trainer: Obj) -> None:
    """What older trainers take themselves."""
    for name in ("max_seq_length", "max_length", "max_prompt_length", "beta", "packing"):
        if name in trainer.kwargs:
            said[name] = trainer.kwargs[name]
            made.places[name] = trainer.places.get(name, (trainer.file, trainer.line))
    if "quantization_config" in trainer.kwargs:
        found = models.Found()
        models.quantization(found, trainer.kwargs["quantization_config"], (trainer.file, trainer.line))
        said |= found.table
        made.places |= found.places
    start = trainer.kwargs.get("model_init_kwargs")
    if isinstance(start, dict):
        said |= {("dtype" if name == "torch_dtype" else name): value for name, value in start.items()}


def _adapters(found: models.Found, trainer: Obj) -> None:
    config = trainer.kwargs.get("peft_config", MISSING)
    if not isinstance(config, Missing) and found.table.get("use_peft") is not True:
        models.of_adapter(found, config)


def _defaults_of_loading(made: Made, said: dict[str, Any], found: models.Found) -> None:
    """Where nobody said a dtype, transformers before 5 loads in fp32, later ones as the files are."""
    if "plain dtype" not in found.kinds or "dtype" in said or found.unsloth:
        return
    if any(found.table.get(name) is True for name in ("load_in_4bit", "load_in_8bit")):
        found.table["dtype"] = "float16"  # bitsandbytes' own default (`update_dtype` of its quantizer)
    else:
        made.notes.append(
            "no dtype is given to from_pretrained: fp32 is planned, as transformers 4 loads; transformers 5 loads as "
            "the checkpoint is, mostly bf16"
        )


def _length(run: Statements, made: Made, said: dict[str, Any], top: Scope, tree: ast.Module) -> None:
    """transformers' Trainer is given data that is cut already: the longest that the script tells a tokenizer."""
    found: list[tuple[int, int]] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for word in node.keywords:
            if word.arg in LENGTHS:
                value = run.value(word.value, top)
                known = [each for each in options(value) if type(each) is int and 0 < each < 10**7]
                found += [(each, node.lineno) for each in known or _named(run, word.value)]
    if found:
        said["max_length"], line = max(found)
        made.places["max_length"] = (made.file, line)
        return
    named = _set_in_functions(tree, made.file) | run.state.lengths
    for one, two in (("max_source_length", "max_target_length"), ("source_max_len", "target_max_len")):
        if one in named and two in named:
            (first, file, line), (second, *_) = named.pop(one), named.pop(two)
            named[one] = (first + second, file, line)
    if named:
        said["max_length"], file, line = max(named.values(), key=lambda each: each[0])
        made.places["max_length"] = (file, line)


def _named(run: Statements, value: ast.expr) -> list[int]:
    """The number of a flag, a field or a parameter by its name, which stands in a function that is not followed."""
    name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    found = run.state.numbers.get(name.lower())
    return [] if found is None else [found[0]]


def _set_in_functions(tree: ast.Module, file: str) -> dict[str, tuple[int, str, int]]:
    """Lengths that functions set for themselves which only the data's `map` calls: `MAX_LENGTH = 384`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id.lower(), node.value
            number = value.value if isinstance(value, ast.Constant) else None
            if name in NAMES and type(number) is int and 0 < number < 10**7:
                found[name] = (number, file, node.lineno)
    return found


def _more_models(made: Made, trainer: Obj) -> None:
    """Reward models and the like by the names of their checkpoints, where the trainer takes models as well."""
    rewards = trainer.kwargs.get("reward_funcs", trainer.args[1] if len(trainer.args) > 1 else None)
    for each in rewards if isinstance(rewards, list | tuple) else (rewards,):
        if (name := _checkpoint(each)) and made.kind in ("grpo", "rloo", "online_dpo"):
            made.table["reward_model"] = name
    for key in ("teacher_model", "reward_model", "value_model"):
        given = trainer.kwargs.get(key)
        if isinstance(given, Obj | str | Either):
            made.table[key] = _checkpoint(given) or "that is not known"
    if isinstance(reference := trainer.kwargs.get("ref_model"), Obj):
        made.table["ref_model"] = _checkpoint(reference) or "given"


def _checkpoint(value: object) -> str:
    """The checkpoint of a model that a trainer is given, by its name or loaded from it; empty for anything else."""
    if isinstance(value, Obj) and value.last == "from_pretrained":
        return str(value.args[0] if value.args else value.kwargs.get("pretrained_model_name_or_path", "a model"))
    return value if isinstance(value, str) else ""


# -- from values to plain ones -------------------------------------------------------------------------------


def _resolved(made: Made, said: dict[str, Any]) -> None:
    """Every setting as a plain value; of several the one that takes the most memory, where that is clear."""
    for name, value in said.items():
        if name == HIDDEN:
            made.hidden = made.hidden or reason(value)
            continue
        if isinstance(value, Either):
            value = _one_of(made, name, value)
        plain = _plain(value)
        if isinstance(plain, Missing):
            if why := reason(value):
                made.unknown[name] = why
            last = value.parts[-1] if isinstance(value, Text) and name == "model_name_or_path" else None
            if isinstance(last, str) and "/" in last:
                made.table[name] = last[last.index("/") :]  # the folder alone is not known
        else:
            made.table[name] = plain


def _one_of(made: Made, name: str, value: Either) -> Any:
    known = [_plain(each) if not isinstance(each, Missing) else each for each in value.options]
    if any(isinstance(each, Unknown) for each in value.options):
        return next(each for each in value.options if isinstance(each, Unknown))
    pick = heavier(name, known)
    if pick is None:
        return Unknown(f"{value.why} ({' or '.join(_shown(each) for each in known)[:120]})")
    place, why = pick
    told = " or ".join(_shown(each) for each in known)
    if why:
        made.notes.append(f"{name} = {_shown(known[place])} (which {why} of {told[:120]}: {value.why})")
    return value.options[place]


def _shown(value: Any) -> str:
    return "not given" if isinstance(value, Missing) else str(value)[:60]


def _plain(value: Any) -> Any:
    """A value as a setting holds it; MISSING for what is none."""
    if isinstance(value, Ref):
        return value.path
    if isinstance(value, Obj) and value.last == "Path":
        from headway.foreign.python.builtins import path_join

        value = path_join((value,))
    if isinstance(value, dict):
        return {
            str(key): plain for key, each in value.items() if not isinstance(plain := _plain(each), Missing)
        }  # fmt: skip
    if isinstance(value, list | tuple):
        return [plain for each in value if not isinstance(plain := _plain(each), Missing)]
    return value if is_plain(value) else MISSING


def refusal(events: list[Event], path: str, ended: str, tree: ast.Module) -> InputError:
    """Why a script is not planned, and what to do instead. `ended`: where it ends by itself before that."""
    if ended:
        return InputError(
            f"{path}: it ends before it trains ({ended}); pass the arguments that it needs, as in: headway plan -- "
            f"python {path} --num_nodes 4"
        )
    other = next((each for each in events if each.kind == "made" and isinstance(each.what, Obj)), None)
    seen = f"; it makes {other.what.last} in line {other.line}, which is not read" if other is not None else ""
    seen = seen or _defined(tree)
    return InputError(
        f"{path}: no trainer that is known is started in it{seen}; read are trainers of TRL, transformers and "
        "Unsloth that the script makes itself (GRPOTrainer(...)), and launchers of Miles and slime; name the "
        "script that starts the training, or the model and its trainer, such as: headway plan qwen3-4B --trainer trl "
        "--machine rtx4090"
    )


def _defined(tree: ast.Module) -> str:
    """A function that makes a trainer, and that nothing in the script calls; empty where there is none."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for inner in ast.walk(node):
            name = ast.unparse(inner.func).rpartition(".")[2] if isinstance(inner, ast.Call) else ""
            if name in KINDS:
                return f"; {node.name}() in line {node.lineno} makes a {name}, and nothing in the file calls it"
    return ""
