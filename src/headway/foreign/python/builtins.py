"""What Python's own functions, methods of texts and tables, and a few names of libraries give: no more than is safe.

Sizes are bounded: a text or list that would grow beyond any setting is unknown.
"""

import builtins as own
import re
from collections.abc import Callable
from typing import Any

from headway.foreign.python.state import State
from headway.foreign.python.values import (
    LONGEST_LIST,
    LONGEST_TEXT,
    MISSING,
    Cls,
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
    joined,
    lift,
    reason,
)

NAMES = frozenset(dir(own))
HIDDEN = "**"
"""The name of arguments that come from a table which is not known."""
KNOWN = re.compile(
    r"(GRPO|RLOO|PPO|DPO|KTO|ORPO|CPO|SFT|GKD|OnlineDPO|Reward)(Config|Trainer)|(Seq2Seq)?(Trainer|TrainingArguments)|"
    r"LoraConfig|BitsAndBytesConfig|AutoModelFor\w+|Fast(Language|Vision)?Model|get_peft_model|"
    r"prepare_model_for_kbit_training|torch"
)
"""Names that parts of scripts, as reports have them, use without importing them."""
NAMESPACE = "argparse.Namespace"
SAME = frozenset({
    "to", "cuda", "cpu", "half", "bfloat16", "float", "eval", "requires_grad_", "train", "merge_and_unload",
    "add_argument_group", "add_mutually_exclusive_group", "expanduser", "resolve", "absolute",
})  # fmt: skip
"""Methods of a library's object that give the object itself."""
TABLES: dict[str, dict[str, int]] = {
    "NUM_GPUS_OF_HARDWARE": {
        "H100": 8, "H200": 8, "B200": 8, "B300": 8, "GB200": 4, "GB300": 4, "MI350X": 8, "MI355X": 8
    }
}  # fmt: skip
"""Tables of Miles's launchers (31f1ca961, `command_utils.py`)."""
ALWAYS = {
    "torch.cuda.is_available": True, "torch.cuda.is_bf16_supported": True, "os.path.exists": None,
    "transformers.utils.is_flash_attn_2_available": None, "unsloth.is_bfloat16_supported": True,
    "unsloth.is_bf16_supported": True, "torch.backends.mps.is_available": False, "torch.xpu.is_available": False,
    "transformers.utils.is_torch_xpu_available": False,
    "transformers.is_torch_xla_available": False, "transformers.is_torch_npu_available": False,
    "torch.cuda.empty_cache": None, "transformers.utils.is_torch_bf16_gpu_available": True,
}  # fmt: skip
"""What is taken to be so where a run is planned on a device."""


def environment(state: State, key: Any, default: Any, where: str) -> Any:
    """A variable of the environment: what the command or the script sets, else unknown; MISSING has no default."""
    if not isinstance(key, str):
        return Unknown(f"{where}: an environment variable")
    if key in state.environment:
        return state.environment[key]
    if isinstance(default, Missing) or default is None:
        return Unknown(f"{where}: environment variable {key} is not known", key)
    if is_plain(default):
        taken(state, where, key, default)
    return default


def taken(state: State, where: str, key: str, default: Any) -> None:
    """A variable of the environment is taken to be what the script has in its place."""
    state.asked[key] = f"{where}: {key} is taken to be {default!r}, its default; the environment may set it"


def path_join(parts: tuple[Any, ...]) -> Any:
    """`os.path.join`."""
    found: list[Any] = []
    for part in parts:
        if isinstance(part, Obj) and part.last == "Path":
            part = path_join(tuple(part.args))
        if isinstance(part, str) and part.startswith("/"):
            found = []
        if found:
            found.append("/")
        found.append(part.rstrip("/") if isinstance(part, str) and part != "/" else part)
    return joined(found)


ARGUMENTS = {
    "fp16": False, "bf16": False, "gradient_checkpointing": False, "deepspeed": None, "fsdp": "", "max_steps": -1,
    "resume_from_checkpoint": None,
}  # fmt: skip
"""Defaults of transformers' `TrainingArguments` by which scripts decide how they load (4.57, `training_args.py`)."""


def of_arguments(base: Obj) -> dict[str, Any]:
    """The defaults that `TrainingArguments` have where nothing is hidden; none for other objects."""
    mine = base.last in ("TrainingArguments", "Seq2SeqTrainingArguments") and HIDDEN not in base.kwargs
    return ARGUMENTS if mine else {}


def attribute(base: Obj, name: str) -> Any:
    """An attribute of a library's object that is told by how it was made; MISSING for others."""
    if name in (defaults := of_arguments(base)):
        return defaults[name]
    if base.last == "Path" and base.args and name in ("name", "stem", "parent", "suffix"):
        whole = path_join(tuple(base.args))
        if not isinstance(whole, str):
            return whole if isinstance(whole, Unknown) else Unknown(reason(whole))
        folder, _, last = whole.rstrip("/").rpartition("/")
        if name == "parent":
            made = Obj("pathlib.Path", base.file, base.line)
            made.args = [folder or "."]
            return made
        stem, dot, suffix = last.rpartition(".")
        return {"name": last, "stem": stem if dot else last, "suffix": dot + suffix if dot else ""}[name]
    return MISSING


# -- methods of plain values ---------------------------------------------------------------------------------

TEXT_METHODS = frozenset({
    "strip", "lstrip", "rstrip", "lower", "upper", "title", "startswith", "endswith", "replace", "split", "rsplit",
    "removeprefix", "removesuffix", "rpartition", "partition", "isdigit", "splitlines", "find", "count", "capitalize",
})  # fmt: skip


def method(base: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What a method of a text, list or table gives; MISSING where it is not known."""
    if isinstance(base, str):
        return lift(lambda *each: _of_text(base, name, list(each)), *args) if not kwargs else MISSING
    if isinstance(base, Text):
        return base if name in ("strip", "rstrip", "lstrip") else MISSING
    if isinstance(base, dict):
        return _of_table(base, name, args, kwargs)
    if isinstance(base, list):
        return _of_list(base, name, args)
    return MISSING


def _of_text(base: str, name: str, args: list[Any]) -> Any:
    if name == "join" and len(args) == 1 and isinstance(args[0], list | tuple):
        parts: list[Any] = []
        for each in args[0]:
            if not isinstance(each, str | Text | Either | Unknown):
                return MISSING
            parts += [base, each] if parts else [each]
        return joined(parts)
    if name == "format" and "{" in base and is_plain(args) and base.count("{}") == len(args) == base.count("{"):
        pieces = base.split("{}")
        return joined(pieces[0:1] + [part for pair in zip(map(str, args), pieces[1:], strict=True) for part in pair])
    plain = all(isinstance(each, str | int) or (isinstance(each, tuple) and is_plain(each)) for each in args)
    if name not in TEXT_METHODS or not plain:
        return MISSING
    if name == "replace" and len(args) > 1 and len(base) * (1 + len(str(args[1]))) > LONGEST_TEXT:
        return MISSING
    try:
        return getattr(base, name)(*args)
    except (TypeError, ValueError):
        return MISSING


def _of_table(base: dict[Any, Any], name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if name in ("get", "pop", "setdefault") and args and isinstance(args[0], str | int | bool | None):
        default = args[1] if len(args) > 1 else None
        there = base.get(args[0], MISSING)
        if isinstance(there, Missing) and HIDDEN in base:
            return base[HIDDEN]
        if name == "pop":
            base.pop(args[0], None)
        found = either((default if isinstance(e, Missing) else e for e in _each(there)), reason(there))
        if name == "setdefault":
            base[args[0]] = found
        return found
    if name == "update":
        for table in (*args, kwargs):
            if isinstance(table, dict):
                base.update(table)
            else:
                base[HIDDEN] = Unknown(reason(table) or "a table that is not known")
        return None
    if name == "copy":
        return dict(base)
    if name in ("keys", "values", "items"):
        return [list(pair) if name == "items" else pair for pair in getattr(base, name)()]
    return MISSING


def _each(value: Any) -> tuple[Any, ...]:
    return value.options if isinstance(value, Either) else (value,)


def _of_list(base: list[Any], name: str, args: list[Any]) -> Any:
    if name == "append" and len(args) == 1 and len(base) < LONGEST_LIST:
        base.append(args[0])
        return None
    if name == "extend" and len(args) == 1 and isinstance(args[0], list | tuple):
        if len(base) + len(args[0]) <= LONGEST_LIST:
            base.extend(args[0])
        return None
    if name == "insert" and len(args) == 2 and isinstance(args[0], int) and len(base) < LONGEST_LIST:
        base.insert(args[0], args[1])
        return None
    if name == "copy":
        return list(base)
    if name == "index" and len(args) == 1 and is_plain(base) and args[0] in base:
        return base.index(args[0])
    return MISSING


# -- functions -----------------------------------------------------------------------------------------------


def function(state: State, path: str, args: list[Any], kwargs: dict[str, Any], at: tuple[str, int]) -> Any:
    """What a call of Python's own or of a library's function gives; MISSING where it is not known."""
    where = f"{at[0]} line {at[1]}"
    if path in ("os.environ.get", "os.getenv", "os.environ.setdefault"):
        default = args[1] if len(args) > 1 else kwargs.get("default")
        found = environment(state, args[0] if args else None, default, where)
        if path.endswith("setdefault") and args and isinstance(args[0], str):
            state.environment.setdefault(args[0], found)
        return found
    if path in ("os.environ.update",) and args and isinstance(args[0], dict):
        state.environment.update({str(key): value for key, value in args[0].items()})
        return None
    if path in ("os.path.join", "posixpath.join"):
        return path_join(tuple(args))
    if path in ("os.path.basename", "os.path.dirname") and args and isinstance(args[0], str):
        folder, _, last = args[0].rpartition("/")
        return last if path.endswith("basename") else folder
    if path in ("os.path.expanduser", "os.path.abspath", "os.path.normpath", "os.fspath") and args:
        return args[0]
    if path in ALWAYS:
        known = ALWAYS[path]
        return Unknown(f"{where}: what {path} gives is not known") if known is None else known
    if path == "json.dumps" and args and is_plain(args[0]):
        import json

        return json.dumps(args[0])[:LONGEST_TEXT]
    if path == "dataclasses.asdict" and args and isinstance(args[0], Obj):
        return {**of_arguments(args[0]), **args[0].kwargs, **args[0].attrs}
    if path in ("copy.deepcopy", "copy.copy", "typing.cast") and args:
        return args[-1]
    if path in ("re.search", "re.match", "re.fullmatch") and len(args) == 2 and not kwargs:
        return _matched(path.rpartition(".")[2], args[0], args[1], at)
    if path in ("functools.partial",):
        return _partial(args, kwargs, at)
    if not path.startswith("builtins."):
        return MISSING
    name = path.removeprefix("builtins.")
    if name == "len" and args == [Ref("sys.argv")]:
        plain = [each for each in state.arguments if isinstance(each, str)]
        if len(plain) > 1 or not reason(state.arguments):  # scripts ask whether there is none, or a file alone
            return 1 + len(state.arguments)
    if name in OVER_ONE and len(args) == 1 and not kwargs:
        return lift(lambda each: _over_one(name, each), args[0])
    if name in SEVERAL:
        return SEVERAL[name](args, kwargs, at)
    return MISSING


def _matched(how: str, pattern: Any, text: Any, at: tuple[str, int]) -> Any:
    """A match of a regular expression, by an engine whose time is bounded; MISSING where it is not known."""
    if not isinstance(pattern, str) or not isinstance(text, str) or len(pattern) > 200 or len(text) > 4096:
        return MISSING
    import re2

    try:
        found = getattr(re2, how)(pattern, text)
    except re2.error:
        return MISSING
    if found is None:
        return None
    made = Obj("re.Match", *at)
    made.args = [found.group(0), *found.groups()]
    return made


def _partial(args: list[Any], kwargs: dict[str, Any], at: tuple[str, int]) -> Any:
    if args and isinstance(args[0], Func) and not args[1:]:
        return Func(args[0].node, args[0].scope, {**args[0].defaults, **kwargs}, args[0].bound)
    made = Obj("functools.partial", *at)
    made.args, made.kwargs = args, kwargs
    return made


OVER_ONE = frozenset({
    "int", "float", "str", "bool", "len", "abs", "list", "tuple", "set", "dict", "sorted", "sum", "min", "max", "any",
    "all", "round", "reversed", "vars", "repr", "enumerate", "iter",
})  # fmt: skip


def _over_one(name: str, value: Any) -> Any:
    if name == "vars" and isinstance(value, Obj):
        return {**of_arguments(value), **value.kwargs, **value.attrs}
    if name == "str" and isinstance(value, Obj) and value.last == "Path":
        return path_join(tuple(value.args))
    if name == "str" and isinstance(value, Text):
        return value
    if name == "str" and isinstance(value, Ref):
        return value.path
    if isinstance(value, Unknown | Text):
        return Unknown(value.why)
    if name == "bool" and value is not None and isinstance(value, Ref | Func | Cls | Scope):
        return True
    if isinstance(value, Obj | Ref | Func | Cls | Scope | Missing):
        return MISSING
    if name in ("list", "tuple", "set", "sorted", "reversed", "enumerate", "iter"):
        return _rows(name, value)
    if name == "len" and isinstance(value, str | list | tuple | dict):
        return len(value)
    if not is_plain(value):
        return MISSING if name != "dict" else value
    try:
        if name in ("int", "float") and isinstance(value, str) and len(value) > 40:
            return MISSING
        return getattr(own, name)(value)
    except (TypeError, ValueError, OverflowError):
        return MISSING


def _rows(name: str, value: Any) -> Any:
    """Lists of lists, texts and tables."""
    if isinstance(value, str):
        return list(value[:LONGEST_LIST])
    if not isinstance(value, list | tuple | dict):
        return MISSING
    rows = list(value)
    if name == "sorted":
        try:
            return sorted(rows) if is_plain(rows) else rows
        except TypeError:
            return rows
    if name == "enumerate":
        return [(place, row) for place, row in enumerate(rows)]
    if name == "reversed":
        return rows[::-1]
    return tuple(rows) if name == "tuple" else rows


def _range(args: list[Any], _kwargs: dict[str, Any], _at: tuple[str, int]) -> Any:
    if not args or not all(isinstance(each, int) for each in args):
        return MISSING
    try:
        found = range(*args)
        return list(found[:LONGEST_LIST])
    except (TypeError, ValueError, OverflowError):
        return MISSING


def _extreme(name: str) -> Callable[[list[Any], dict[str, Any], tuple[str, int]], Any]:
    def found(args: list[Any], kwargs: dict[str, Any], _at: tuple[str, int]) -> Any:
        def one(*values: Any) -> Any:
            if not all(isinstance(each, int | float) for each in values):
                return Unknown(reason(*values)) if reason(*values) else MISSING
            return getattr(own, name)(values)

        rows = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
        return lift(one, *rows) if rows and len(rows) <= 16 and not kwargs else MISSING

    return found


def _dict(args: list[Any], kwargs: dict[str, Any], _at: tuple[str, int]) -> Any:
    if args and isinstance(args[0], dict):
        return {**args[0], **kwargs}
    return dict(kwargs) if not args else MISSING


def _getattr(args: list[Any], _kwargs: dict[str, Any], _at: tuple[str, int]) -> Any:
    """`getattr(torch, name)`; the third argument counts where an object of the script has no such attribute."""
    if len(args) < 2:
        return MISSING

    def one(base: Any, name: Any) -> Any:
        if isinstance(base, Ref) and isinstance(name, str):
            return Ref(f"{base.path}.{name}")
        if isinstance(base, Obj) and isinstance(name, str):
            found = base.get(name)
            return args[2] if isinstance(found, Missing) and len(args) > 2 else found
        return Unknown(reason(base, name)) if reason(base, name) else MISSING

    return lift(one, *args[:2])


def _setattr(args: list[Any], _kwargs: dict[str, Any], at: tuple[str, int]) -> Any:
    if len(args) == 3 and isinstance(args[0], Obj) and isinstance(args[1], str):
        args[0].set(args[1], args[2], *at)
    return None


def _isinstance(args: list[Any], _kwargs: dict[str, Any], _at: tuple[str, int]) -> Any:
    kinds = {"builtins.str": str, "builtins.int": int, "builtins.float": float, "builtins.list": list,
             "builtins.dict": dict, "builtins.tuple": tuple, "builtins.bool": bool}  # fmt: skip
    if len(args) != 2 or not (is_plain(args[0]) or isinstance(args[0], list | dict | tuple | Text)):
        return MISSING
    asked = args[1] if isinstance(args[1], tuple) else (args[1],)
    found = [kinds.get(each.path) if isinstance(each, Ref) else None for each in asked]
    value = "" if isinstance(args[0], Text) else args[0]
    if any(kind is not None and isinstance(value, kind) for kind in found):
        return True
    return False if None not in found else MISSING


def _zip(args: list[Any], _kwargs: dict[str, Any], _at: tuple[str, int]) -> Any:
    if not args or not all(isinstance(each, list | tuple) for each in args):
        return MISSING
    return [tuple(row) for row in zip(*args, strict=False)]


def _nothing(_args: list[Any], _kwargs: dict[str, Any], _at: tuple[str, int]) -> Any:
    return None


SEVERAL: dict[str, Callable[[list[Any], dict[str, Any], tuple[str, int]], Any]] = {
    "range": _range, "min": _extreme("min"), "max": _extreme("max"), "dict": _dict, "getattr": _getattr,
    "setattr": _setattr, "isinstance": _isinstance, "zip": _zip, "print": _nothing,
}  # fmt: skip
