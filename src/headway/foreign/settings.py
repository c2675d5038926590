"""`--set section.key=value` on a Workload: every key of it by its path, checked by the type of its field."""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from headway.config.words import SAME
from headway.errors import InputError
from headway.facts.shapes import ModelShape
from headway.facts.workload import ROLES, VALUED, Engine, Float8, Layout, Lora, Offload, OtherModel, Quant, Workload
from headway.units import parse_bytes

SIZES = {
    "rollout.kv_budget",
    "engine.bucket",
    "reward_limit_bytes",
    "weights_file_bytes",
    "tools_limit_bytes",
    "trainer.megatron.inference_cache",
}
"""Keys whose value is a size and may be written as 512MiB."""
NOT_SET = {"model", "steps_known", "unknown", "unplanned", "not_read"}
"""Fields that are no keys: the model is named on its own, and what is unknown is said by who reads a run."""
OF_OTHERS = {
    "model", "group", "in_host", "process", "trainer.rows", "trainer.cap", "trainer.score_rows", "trainer.score_cap",
    "trainer.offload", "trainer.checkpointing",
    "trainer.param_dtype", "trainer.optimizer.state_dtype", "trainer.optimizer.offload", "layout.nodes",
    "layout.devices", "layout.shards", "layout.replicas", "layout.tensor", "layout.pipeline", "layout.context",
}  # fmt: skip
"""Keys of another model, such as `critic`; in the rest it is like the actor."""
FRESH: dict[str, Any] = {
    "trainer.lora": Lora(16, "all-linear"),
    "trainer.quant": Quant("nf4"),
    "trainer.float8": Float8(),
    "engine": Engine("sglang", 0.4),
    "engine.quant": Quant("fp8"),
}
"""What a section starts from when a key of it is set and it is not there."""


class Setting(Struct, frozen=True):
    """One key of a Workload.

    >>> table()["rollout.max_answer"].accepts
    'a whole number'
    """

    path: str
    kind: Any
    accepts: str


@cache
def table() -> dict[str, Setting]:
    """All keys by path, in the order of the records."""
    found = {each.path: each for each in _settings(Workload, "")}
    return {path: each for path, each in found.items() if not _is_fixed(path)}


def _is_fixed(path: str) -> bool:
    """Whether a key of another model is not set on its own."""
    role, _, key = path.partition(".")
    return role in ROLES and key not in OF_OTHERS


def _settings(record: type[Struct], prefix: str) -> Iterator[Setting]:
    kinds = get_type_hints(record)
    for name in record.__struct_fields__:
        path = prefix + name
        if path in NOT_SET:
            continue
        section = record_in(kinds[name])
        section = None if section is ModelShape else section
        if section is None:
            yield Setting(path, kinds[name], _accepts(path, kinds[name]))
        else:
            yield from _settings(section, f"{path}.")


def record_in(kind: Any) -> type[Struct] | None:
    """The record that a field of this type holds, or may hold.

    >>> record_in(Layout | None).__name__
    'Layout'
    """
    kinds = (kind, *get_args(kind))
    return next((each for each in kinds if isinstance(each, type) and issubclass(each, Struct)), None)


def _accepts(path: str, kind: Any) -> str:
    if path in SIZES:
        return "a size such as 512MiB"
    if record_in(kind) is ModelShape:
        return "a model of the built-in table"
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if origin in (Union, UnionType):
        return " or ".join(_accepts("", each) for each in get_args(kind) if each is not type(None))
    if origin is tuple:
        return "names with commas between them"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(kind, str(kind))


def apply(workload: Workload, settings: Sequence[str]) -> Workload:
    """The workload with `key=value` settings in order. InputError names every one that cannot be.

    `none` takes a section away (`trainer.lora=none`); setting a key of an absent section makes the section.
    """
    problems: list[str] = []
    for setting in settings:
        path, equals, text = setting.partition("=")
        try:
            if not equals:
                raise InputError(f"--set {setting}: write key=value, such as rollout.max_answer=256")
            workload = _set(workload, path.strip(), text.strip())
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return workload


def _set(workload: Workload, path: str, text: str) -> Workload:
    if path in {*FRESH, *ROLES} and text.lower() == "none":
        without: Workload = _put(workload, path.split("."), None, "")
        return without
    known = table().get(path)
    if known is None:
        raise InputError(_no_such_key(path))
    changed: Workload = _put(workload, path.split("."), _value(known, text), "")
    return changed


def _put(record: Any, path: list[str], value: Any, prefix: str) -> Any:
    """The record with the value at the end of the path."""
    name, rest = path[0], path[1:]
    if not rest:
        said = {"steps_known": True} if path == ["steps"] else {}
        return replace(record, **{name: value}, **said)
    here = f"{prefix}{name}"
    inner = getattr(record, name)
    if inner is None:
        inner = like_the_actor(record, here) if here in ROLES else FRESH[here]
    return replace(record, **{name: _put(inner, rest, value, f"{here}.")})


def like_the_actor(run: Workload, name: str) -> OtherModel:
    """A model beside the actor, held as the actor is and of its sizes: what the first key that is set starts from."""
    trainer, role = run.trainer, ROLES[name]
    away: Offload = "parameters+optimizer" if trainer.offload == "dropped" else trainer.offload
    held = replace(
        trainer, reference="none", copies=(), offload=away, entropy=False,
        loss="value" if role in VALUED else trainer.loss,
        temperature=False,
    )  # fmt: skip
    shape = run.model.valued() if role in VALUED else run.model
    return OtherModel(shape, held, run.layout, trained=role == "critic")


def _shape(setting: Setting, text: str) -> ModelShape:
    from headway.facts.shapes import by_name, nearest

    found = by_name(text)
    if found is None:
        near = nearest(text)
        hint = f"; nearest are {', '.join(near)}" if near else ""
        raise InputError(f"--set {setting.path}={text}: no such model in the built-in table{hint}")
    return found.valued() if ROLES[setting.path.partition(".")[0]] in VALUED else found


def _value(setting: Setting, text: str) -> Any:
    if record_in(setting.kind) is ModelShape:
        return _shape(setting, text)
    if setting.path in SIZES:
        try:
            return parse_bytes(text)
        except ValueError as error:
            raise InputError(f"--set {setting.path}={text}: {error}") from None
    raw: Any = None if text.lower() == "none" and "none" not in get_args(setting.kind) else text
    if "names with commas" in setting.accepts and ("," in text or get_origin(setting.kind) is tuple):
        raw = tuple(part.strip(" '\"") for part in text.strip("()").split(",") if part.strip())
    try:
        value = _read(setting.kind, raw)
    except ValueError:
        raise InputError(f"--set {setting.path}={text}: must be {setting.accepts}{_written_out(text)}") from None
    if isinstance(value, int | float) and value < 0:
        raise InputError(f"--set {setting.path}={text}: must not be negative")
    if setting.path in _AT_LEAST_ONE and value == 0:
        raise InputError(f"--set {setting.path}={text}: must be at least 1")
    return value


def _written_out(text: str) -> str:
    """How to write a whole number that was given short.

    >>> _written_out("4k"), _written_out("1e3"), _written_out("many")
    (', written out: 4096 (or 4000)', ', written out: 1000', '')
    """
    short = re.fullmatch(r"(\d{1,6})([kKmM])", text)
    if short is not None:
        power = 1 if short[2] in "kK" else 2
        return f", written out: {int(short[1]) * 1024**power} (or {int(short[1]) * 1000**power})"
    if re.fullmatch(r"\d{1,6}(?:\.0*)?(?:[eE]\+?\d{1,2})?", text):
        return f", written out: {int(float(text))}"
    return ""


_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _read(kind: Any, raw: str | tuple[str, ...] | None) -> Any:
    """The value of a field's type; ValueError where it is none.

    >>> _read(int | None, "12"), _read(bool, "True"), _read(Literal["a", "b"] | tuple[str, ...], ("c", "d"))
    (12, True, ('c', 'd'))
    """
    origin, choices = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for each in choices:
            try:
                return _read(each, raw)
            except ValueError:
                continue
        raise ValueError(raw)
    if raw is None or isinstance(raw, tuple):
        if (kind is type(None)) if raw is None else (origin is tuple):
            return raw
        raise ValueError(raw)
    if origin is Literal:
        return choices[choices.index(raw)]
    if kind is bool:
        if raw.lower() not in _TRUTHS:
            raise ValueError(raw)
        return _TRUTHS[raw.lower()]
    if kind in (int, str):
        return kind(raw)
    if kind is float and isfinite(float(raw)):
        return float(raw)
    raise ValueError(raw)


_AT_LEAST_ONE = {
    "trainer.updates", "trainer.lora.rank", "rollout.prompts", "rollout.samples", "rollout.max_answer", "steps",
    "threads", "engine.memory_fraction", "engine.tensor_parallel", "engine.pipeline_parallel", "engine.max_seqs",
    "engine.max_batched_tokens",
    *(
        f"{section}layout.{name}"
        for section in ("", *(f"{role}." for role in ROLES))
        for name in Layout.__struct_fields__ if name != "sequence_parallel"
    ),
}  # fmt: skip


def _no_such_key(path: str) -> str:
    from headway.config.keys import table as runspec

    section, _, last = path.rpartition(".")
    if last in runspec().get(section, {}):
        return f"--set {path}: is a RunSpec's key that changes nothing which is planned here; leave it out"
    same = [key for key in table() if key.rpartition(".")[2] == last]
    near = same[:3] or get_close_matches(path, [*table(), *SAME], n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"--set {path}: no such key of a workload{hint}"
