"""How a script gets its arguments: argparse, dataclasses with HfArgumentParser or TrlParser, typer, click, tyro.

What the command gives lies over the script's defaults; the parsers themselves are not run.
"""

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.foreign.python import builtins, files_beside
from headway.foreign.python.values import (
    MISSING,
    Cls,
    Func,
    Missing,
    Obj,
    Ref,
    Scope,
    Text,
    Unknown,
    either,
)

if TYPE_CHECKING:
    from headway.foreign.python.statements import Statements

COMMAND = "command line"
LAUNCHER_FIELDS: dict[str, Any] = {
    "num_nodes": 1, "cuda_core_dump": False, "extra_env_vars": "", "output_dir": "/root/shared_data",
}  # fmt: skip
"""`ExecuteTrainConfig` of Miles 31f1ca961; `num_nodes` is SLURM_JOB_NUM_NODES where that is set."""
OF_LIBRARIES: dict[str, dict[str, Any]] = {
    "ModelConfig": {
        "model_name_or_path": None, "model_revision": "main", "dtype": "float32", "torch_dtype": None,
        "trust_remote_code": False, "attn_implementation": None, "use_peft": False, "lora_r": 16, "lora_alpha": 32,
        "lora_dropout": 0.05, "lora_target_modules": None, "lora_modules_to_save": None, "load_in_8bit": False,
        "load_in_4bit": False, "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": False,
    },
    "PPOConfig": {"sft_model_path": "EleutherAI/pythia-160m", "reward_model_path": "EleutherAI/pythia-160m"},
    "ScriptArguments": {"dataset_name": None, "dataset_config": None, "dataset_streaming": False},
}  # fmt: skip
"""Defaults of TRL's dataclasses that decide how a script goes on (TRL f2cd57710, `model_config.py`)."""


def flags(words: tuple[Any, ...]) -> tuple[dict[str, list[Any]], list[Any], str]:
    """The flags of a command with their values, by names with underscores; the words before them; and why there may
    be more, empty where there are none.

    >>> flags(("run.json", "--lr", "1e-5", "--use-peft", "--beta=0"))[0]
    {'lr': ['1e-5'], 'use_peft': [], 'beta': ['0']}
    """
    found: dict[str, list[Any]] = {}
    plain: list[Any] = []
    hidden, now = "", plain
    for word in words:
        text = word if isinstance(word, str) else word.shown if isinstance(word, Text) else ""
        if (text.startswith("--") and len(text) > 2) or re.match(r"-[A-Za-z]\w*$", text):
            name, given, value = text.lstrip("-").partition("=")
            now = found[name.replace("-", "_")] = []
            if given:
                now.append(value if isinstance(word, str) else Unknown(word.why))
                now = []
        elif isinstance(word, Unknown):
            hidden = word.why
        else:
            now.append(word)
    return found, plain, hidden


def converted(words: list[Any], kind: str) -> Any:
    """The value of a flag by its type: words for nothing but text where none is known."""
    kind = re.sub(r"(typing\.)?Optional\[(.*)\]", r"\2", kind).replace("| None", "").strip(" '\"")
    if re.match(r"(typing\.)?(list|List|tuple|Sequence)\b", kind):
        return [_one(word, "") for word in words]
    if not words:
        return True
    return _one(words[0], kind)


def _one(word: Any, kind: str) -> Any:
    if not isinstance(word, str):
        return word
    if kind == "str" or kind.startswith("Literal"):
        return word
    if kind == "bool":
        return word.lower() in ("true", "1", "yes", "t", "y")
    if word in ("None", "null"):
        return None
    if word in ("True", "true", "False", "false"):
        return word.lower() == "true"
    try:
        return int(word) if re.fullmatch(r"[-+]?\d{1,18}", word) else float(word) if len(word) < 32 else word
    except ValueError:
        return word


# -- functions and their parameters --------------------------------------------------------------------------


def bound(run: "Statements", func: Func, args: list[Any], kwargs: dict[str, Any], where: str) -> dict[str, Any]:
    """The parameters of a function with their values."""
    node = func.node.args
    names = [each.arg for each in (*node.posonlyargs, *node.args)]
    given = [func.bound, *args] if not isinstance(func.bound, Missing) else list(args)
    found = dict(zip(names, given, strict=False))
    every = {*names, *(each.arg for each in node.kwonlyargs)}
    found |= {name: value for name, value in kwargs.items() if name in every}
    if node.vararg is not None:
        found[node.vararg.arg] = tuple(given[len(names) :])
    if node.kwarg is not None:
        found[node.kwarg.arg] = {name: value for name, value in kwargs.items() if name not in every}
    for each in (*node.posonlyargs, *node.args, *node.kwonlyargs):
        if each.arg in found and not isinstance(found[each.arg], Missing):
            continue
        default = func.defaults.get(each.arg, MISSING)
        clicked = _clicked(run, func, each.arg)
        if not isinstance(clicked, Missing):
            found[each.arg] = clicked
        elif not isinstance(default, Missing):
            found[each.arg] = _plain_default(default)
        else:
            found[each.arg] = Unknown(f"{where}: {each.arg} is given by whoever calls it")
    return found


def _plain_default(value: Any) -> Any:
    """What `typer.Option(3)` or `Field(default=3)` stands for."""
    if isinstance(value, Obj) and value.last in ("Option", "Argument", "Field", "field"):
        if value.args:
            return value.args[0]
        return value.kwargs.get("default", Unknown(f"{value.file} line {value.line}: has no default"))
    return value


def _clicked(run: "Statements", func: Func, name: str) -> Any:
    """The value of a parameter that `@click.option` gives."""
    for each in func.decorators:
        if not isinstance(each, Obj) or each.last not in ("option", "argument") or "click" not in each.path:
            continue
        written = [text.lstrip("-").replace("-", "_") for text in each.args if isinstance(text, str)]
        if name not in written and name not in [text.partition("/")[0] for text in written]:
            continue
        given, _, _ = flags(run.state.arguments)
        kind = each.kwargs.get("type")
        for text in written:
            if text in given:
                return converted(given[text], kind.last if isinstance(kind, Ref) else "")
        off = False if each.kwargs.get("is_flag") is True else None
        return each.kwargs.get("default", off)
    return MISSING


def started(run: "Statements", func: Func, line: int) -> Any:
    """A function that typer, fire or the like calls with the command's flags."""
    given, plain, hidden = flags(run.state.arguments)
    kwargs: dict[str, Any] = {}
    arguments = func.node.args
    positional = list(plain)
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        cls = (
            run.value(each.annotation, func.scope) if isinstance(each.annotation, ast.Name | ast.Attribute) else None
        )
        if isinstance(cls, Cls):
            kwargs[each.arg] = filled(run, cls, given, hidden)
        elif each.arg in given:
            kwargs[each.arg] = converted(given[each.arg], ast.unparse(each.annotation) if each.annotation else "")
        elif each.arg not in func.defaults and positional:
            kwargs[each.arg] = _one(positional.pop(0), "")
    return run.follow(func, [], kwargs, line)


# -- classes -------------------------------------------------------------------------------------------------

PLAIN_BASES = ("ScriptArguments", "ExecuteTrainConfig", "DatasetConfig", "PretrainedConfig", "BaseConfig")


def library_base(cls: Cls) -> str | None:
    """The trainer's or configuration's class of a library that a class of the script extends."""
    waiting: list[Any] = list(cls.bases)
    for _ in range(16):
        if not waiting:
            break
        base = waiting.pop(0)
        if isinstance(base, Cls):
            waiting += base.bases
        elif isinstance(base, Ref) and base.last.endswith(("Trainer", "Config", "Arguments")):
            return None if base.last in PLAIN_BASES else base.path
    return None


def fields(run: "Statements", cls: Cls) -> tuple[list[str], dict[str, Any]]:
    """The fields of a class in order, those of the classes below it first, and what they hold without being given."""
    names: list[str] = []
    defaults: dict[str, Any] = {}
    for base in reversed(cls.bases):
        if isinstance(base, Cls):
            more, inner = fields(run, base)
            names += [name for name in more if name not in names]
            defaults |= inner
        elif isinstance(base, Ref) and base.last == "ExecuteTrainConfig":
            where = f"{cls.scope.file} line {cls.line}"
            nodes = builtins.environment(run.state, "SLURM_JOB_NUM_NODES", "1", where)
            defaults |= {**LAUNCHER_FIELDS, "num_nodes": _one(nodes, "int")}
            names += [name for name in LAUNCHER_FIELDS if name not in names]
        elif isinstance(base, Ref) and base.last in OF_LIBRARIES:
            defaults |= OF_LIBRARIES[base.last]
    names += [name for name in cls.fields if name not in names]
    for name, value in list(cls.scope.names.items()):
        if not isinstance(value, Func | Cls):
            defaults[name] = _default(run, value)
    return names, defaults


def _default(run: "Statements", value: Any) -> Any:
    if not isinstance(value, Obj) or value.last not in ("field", "Field"):
        return value
    if "default" in value.kwargs:
        return value.kwargs["default"]
    factory = value.kwargs.get("default_factory", MISSING)
    if isinstance(factory, Func):
        return run.follow(factory, [], {}, value.line)
    if isinstance(factory, Cls):
        return run.make(factory, [], {}, (value.file, value.line))
    if isinstance(factory, Ref) and factory.path in ("builtins.list", "builtins.dict"):
        return [] if factory.path.endswith("list") else {}
    return value.args[0] if value.args else MISSING


def filled(
    run: "Statements", cls: Any, given: dict[str, list[Any]], hidden: str, table: dict[str, Any] | None = None
) -> Any:
    """A dataclass with what the command gives; `table` is a file's below that."""
    said = dict(table or {})
    if isinstance(cls, Ref):
        made = Obj(cls.path, COMMAND, 1)
        made.kwargs = said | {name: converted(words, "") for name, words in given.items()}
        made.places = dict.fromkeys(made.kwargs, (COMMAND, 1))
        if hidden:
            made.kwargs[builtins.HIDDEN] = Unknown(f"may be among words that are not known: {hidden}")
        return made
    if not isinstance(cls, Cls):
        return Unknown("a class that is not known")
    names, _ = fields(run, cls)
    types = _types(cls)
    kwargs = {name: value for name, value in said.items() if name in names}
    kwargs |= {name: converted(given[name], types.get(name, "")) for name in names if name in given}
    kwargs |= {name: False for name in names if f"no_{name}" in given}
    base = library_base(cls)
    if base is not None:
        kwargs = said | {name: converted(words, types.get(name, "")) for name, words in given.items()}
    made = run.make(cls, [], kwargs, (COMMAND, 1))
    for name, value in made.kwargs.items() if isinstance(made, Obj) else ():
        run.state.length(name, value, *made.places.get(name, (COMMAND, 1)))
    if isinstance(made, Obj) and hidden:
        made.kwargs |= {
            name: either((made.kwargs[name], Unknown(hidden)), hidden) for name in names
            if name in made.kwargs and name not in given
        }  # fmt: skip
    return made


def _types(cls: Cls) -> dict[str, str]:
    found: dict[str, str] = {"num_nodes": "int"}
    for base in reversed(cls.bases):
        if isinstance(base, Cls):
            found |= _types(base)
    return found | cls.types


# -- what parsers give ---------------------------------------------------------------------------------------


def called(
    run: "Statements", path: str, value: Any, args: list[Any], kwargs: dict[str, Any], at: tuple[str, int]
) -> Any:
    """What a parser's method, or a starter of functions, gives; MISSING for anything else."""
    last = path.rpartition(".")[2]
    if isinstance(value, Obj):
        if last in ("parse_args", "parse_known_args") and value.last == "ArgumentParser":
            made = _namespace(run, value)
            return (made, []) if last == "parse_known_args" else made
        if value.last in ("HfArgumentParser", "TrlParser", "H4ArgumentParser", "SimpleParser") and last.startswith(
            "parse"
        ):
            return _dataclasses(run, value, last, args, kwargs, at)
        if path == "typer.Typer()" or path == "click.group()":
            return _app(run, value, at)
        return MISSING
    if path in ("typer.run", "fire.Fire") and args:
        if isinstance(args[0], Func):
            return started(run, args[0], at[1])
        return MISSING
    if path in ("tyro.cli", "simple_parsing.parse", "jsonargparse.CLI") and args:
        if isinstance(args[0], Func):
            return started(run, args[0], at[1])
        given, _, hidden = flags(run.state.arguments)
        return filled(run, args[0], given, hidden)
    if path.startswith("model_args_utils."):
        return _of_models(run, last, args, kwargs)
    if last.startswith("execute_train"):
        names = ("train_args", "num_gpus_per_node", "megatron_model_type")
        run.state.event("launch", {**dict(zip(names, args, strict=False)), **kwargs}, *at)
        return None
    if path.startswith(("miles.", "slime.")) or last in ("exec_command", "hf_download_dataset"):
        return _launcher(run, last, args, at)
    if path in COMMANDS and args:
        run.state.event("command", args[0], *at)
        return Unknown(f"{at[0]} line {at[1]}: what the command prints is known only when it runs")
    if path.endswith(".train_on_responses_only") and args:
        return args[0]
    if last in SWITCHED and args and isinstance(args[0], Obj) and builtins.HIDDEN not in args[0].kwargs:
        # None where the arguments do not ask for it
        return MISSING if any(args[0].get(name) not in (MISSING, False) for name in SWITCHED[last]) else None
    if path == "unsloth.unsloth_train" and args and isinstance(args[0], Obj):
        run.state.event("train", args[0], *at)
        return None
    return MISSING


SWITCHED = {"get_peft_config": ("use_peft",), "get_quantization_config": ("load_in_4bit", "load_in_8bit")}
"""TRL's helpers -> the fields of ModelConfig without which they give None."""
COMMANDS = frozenset({
    "os.system", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.Popen",
    "subprocess.check_output",
})  # fmt: skip


def _launcher(run: "Statements", last: str, args: list[Any], at: tuple[str, int]) -> Any:
    """Helpers of Miles's and slime's launchers (`command_utils.py`)."""
    where = f"{at[0]} line {at[1]}"
    if last in ("get_default_wandb_args", "exec_command", "exec_command_cpu", "exec_command_gpu"):
        return ""
    if last in ("exec_command_all_ray_node", "hf_download_dataset", "convert_checkpoint", "rsync_simple"):
        return None
    if last == "get_bool_env_var" and args:
        given = builtins.environment(run.state, args[0], args[1] if len(args) > 1 else "false", where)
        return given.lower() in ("true", "1") if isinstance(given, str) else given
    if last == "get_env_enable_infinite_run":
        return False
    return Unknown(f"{where}: what {last} gives is known only when it runs") if last.islower() else MISSING


def model_arguments(run: "Statements", path: Path, kwargs: dict[str, Any]) -> Any:
    """What `model_args()` of a file of Miles's `scripts/models` gives; Unknown where there is no such file."""
    root = run.state.root
    if root is None or not path.is_file() or root not in path.resolve().parents:
        return Unknown(f"{path.name} is not here")
    function = run.module(files_beside.tree(path), Scope(str(path))).names.get("model_args")
    return (
        run.follow(function, [], kwargs, 1) if isinstance(function, Func) else Unknown(f"{path} has no model_args()")
    )


def _of_models(run: "Statements", last: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Helpers that files of `scripts/models` call (`model_args_utils.py`)."""
    if last == "load_sibling_model_args" and len(args) == 2 and all(isinstance(each, str) for each in args):
        return model_arguments(run, Path(args[0]).resolve().parent / f"{args[1]}.py", kwargs)
    layers, dense = kwargs.get("nlayers"), kwargs.get("first_k_dense_replace")
    if last == "moe_layer_freq" and isinstance(layers, int) and isinstance(dense, int) and 0 <= layers < 1000:
        first = min(max(dense, 0), layers)
        return "[" + ",".join(["0"] * first + ["1"] * (layers - first)) + "]"
    return MISSING


def _app(run: "Statements", app: Obj, at: tuple[str, int]) -> Any:
    """A typer application: the one command that it has, or the one that the command line names."""
    functions = [each for each in app.attrs.get("commands", []) if isinstance(each, Func)]
    named = {each.node.name.replace("_", "-"): each for each in functions if not isinstance(each.node, ast.Lambda)}
    if not named:
        return None
    words = run.state.arguments
    first = words[0].replace("_", "-") if words and isinstance(words[0], str) else ""
    if len(named) == 1:
        return started(run, next(iter(named.values())), at[1])
    if first in named:
        run.state.arguments = words[1:]
        return started(run, named[first], at[1])
    pick = next((name for name in ("train", "full-train", "run", "execute", "main") if name in named), "")
    if not pick:
        return None
    run.state.note(f"{at[0]} line {at[1]}: the command names none of {', '.join(named)}; {pick} is read")
    return started(run, named[pick], at[1])


def _namespace(run: "Statements", parser: Obj) -> Obj:
    """What `parse_args` of an argparse parser gives."""
    given, plain, hidden = flags(run.state.arguments)
    made = Obj(builtins.NAMESPACE, parser.file, parser.line)
    made.kwargs = {}
    for name, args, kwargs, line in parser.calls:
        if name == "set_defaults":
            made.attrs |= {key: value for key, value in kwargs.items() if key not in given}
        if name != "add_argument" or not args or not all(isinstance(each, str) for each in args):
            continue
        where = f"{parser.file} line {line}"
        long = [each for each in args if each.startswith("--")] or list(args)
        dest = kwargs.get("dest") or long[0].lstrip("-").replace("-", "_")
        if isinstance(dest, str):
            made.attrs[dest] = _argument(args, kwargs, given, plain, hidden, where)
            run.state.length(dest, made.attrs[dest], parser.file, line)
            made.places[dest] = (parser.file, line)
    return made


def _argument(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    given: dict[str, list[Any]],
    plain: list[Any],
    hidden: str,
    where: str,
) -> Any:
    """The value of one `add_argument`."""
    names = [each.lstrip("-").replace("-", "_") for each in args]
    kind = kwargs.get("type")
    kind = kind.last if isinstance(kind, Ref) else "str" if kind is None else ""
    action = kwargs.get("action")
    words = next((given[name] for name in names if name in given), None)
    if not args[0].startswith("-"):
        if plain:
            return _one(plain.pop(0), kind)
        return kwargs.get("default", Unknown(f"{where}: {args[0]} is an argument of the command, and is not given"))
    if action in ("store_true", "store_false"):
        default = kwargs.get("default", action == "store_false")
        value: Any = action == "store_true" if words is not None else default
    elif words is not None:
        listed = kwargs.get("nargs", "?") != "?"
        value = [_one(word, kind) for word in words] if listed else converted(words, kind)
        return kwargs.get("const", value) if action == "store_const" else value
    elif f"no_{names[-1]}" in given:
        return False
    elif kwargs.get("required") is True:
        return Unknown(f"{where}: {args[-1]} is required, and the command does not give it")
    else:
        value = kwargs.get("default")
        if isinstance(value, str) and kind in ("int", "float"):
            value = _one(value, kind)
    return either((value, Unknown(hidden)), hidden) if hidden and words is None else value


def _dataclasses(
    run: "Statements", parser: Obj, last: str, args: list[Any], kwargs: dict[str, Any], at: tuple[str, int]
) -> Any:
    """What HfArgumentParser and TrlParser make of their classes: a tuple, one for each."""
    classes = parser.args[0] if parser.args else parser.kwargs.get("dataclass_types", [])
    classes = list(classes) if isinstance(classes, list | tuple) else [classes]
    given, plain, hidden = flags(run.state.arguments)
    table: dict[str, Any] = {}
    name = args[0] if args else next(iter(kwargs.values()), None)
    if last in ("parse_json_file", "parse_yaml_file"):
        given = {}
        if isinstance(name, Obj):
            name = builtins.path_join((name,))
    elif last == "parse_dict":
        given, table, name = {}, name if isinstance(name, dict) else {}, None
    else:
        name = next((given.pop(each)[0] for each in ("config", "config_file") if given.get(each)), None)
        if name is None and plain and isinstance(plain[0], str) and plain[0].endswith((".yaml", ".yml", ".json")):
            name = plain[0]
    if name is not None:
        read = files_beside.table(run.state, name, Path(at[0]))
        if isinstance(read, Unknown):
            hidden = hidden or read.why
            run.state.note(read.why)
        else:
            table |= read
    found = [filled(run, cls, given, hidden, table) for cls in classes]
    for made in found:
        if isinstance(made, Obj) and isinstance(name, str):
            made.places |= {key: (name, 1) for key in table if key not in given}
    owned = {name for cls in classes if isinstance(cls, Cls) for name in fields(run, cls)[0]}
    for made in found:
        if isinstance(made, Obj) and made.cls is None:
            made.kwargs = {name: value for name, value in made.kwargs.items() if name not in owned}
    return (*found, []) if kwargs.get("return_remaining_strings") is True else tuple(found)


def registered(func: Func) -> None:
    """A function that a typer application has as a command."""
    for each in func.decorators:
        if isinstance(each, Obj) and each.last == "command" and each.args and isinstance(each.args[0], Obj):
            each.args[0].attrs.setdefault("commands", []).append(func)


def library_default(base: Obj, name: str) -> Any:
    """The default of a field of a library's dataclass that decides how a script goes on; MISSING for others."""
    return OF_LIBRARIES.get(base.last, {}).get(name, MISSING)
