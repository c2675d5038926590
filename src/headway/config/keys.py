"""Every key of a RunSpec in words: what it accepts, its default, what it means. Read from the sections' fields."""

import ast
import inspect
import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from msgspec import Struct
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from headway.config import sections as sections_module
from headway.config.sections import RunSpec, Section
from headway.units import format_bytes, parse_bytes

_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
}
_SIZE = 'a size such as "512MiB"'
REQUIRED, NOT_SET = "required", "not set"


class Key(Struct, frozen=True):
    """One key of a section.

    >>> key = table()["lora"]["rank"]
    >>> key.kind, key.bounds, key.default
    ('a whole number', 'from 1 to 1024', '16')
    """

    section: str
    name: str
    kind: str
    bounds: str
    default: str
    """As written in TOML, or REQUIRED, or NOT_SET."""
    python_type: Any

    @property
    def meaning(self) -> str:
        """The words below the field."""
        return _meanings()[sections()[self.section].__name__][self.name]

    @property
    def path(self) -> str:
        """`section.name`, as written after `--set`."""
        return f"{self.section}.{self.name}"

    @property
    def accepts(self) -> str:
        """Kind and bounds: `a whole number, at least 1`."""
        return f"{self.kind}, {self.bounds}" if self.bounds else self.kind


@cache
def sections() -> dict[str, type[Section]]:
    """The sections of a RunSpec by name, in the order of the file."""
    return {name: _section_type(field.annotation) for name, field in RunSpec.model_fields.items()}


@cache
def table() -> dict[str, dict[str, Key]]:
    """Every key: section name -> key name -> Key."""
    return {
        section: {name: _key(section, name, field) for name, field in kind.model_fields.items()}
        for section, kind in sections().items()
    }


@cache
def _meanings() -> dict[str, dict[str, str]]:
    """The string below each field, by class and field. Read from the source, and only where words are wanted:
    pydantic would parse it whenever the sections are imported, which takes longer than a plan."""
    found: dict[str, dict[str, str]] = {}
    for kind in ast.parse(inspect.getsource(sections_module)).body:
        if isinstance(kind, ast.ClassDef):
            texts = found[kind.name] = {}
            for field, below in pairwise(kind.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        texts[name] = " ".join(text.split())
    return found


def show(value: Any) -> str:
    """A value as it would stand in TOML, long ones cut; a path never.

    >>> show("bf16"), show(True), show([0.9, 0.95])
    ('"bf16"', 'true', '[0.9, 0.95]')
    """
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except (ValueError, RecursionError):  # an integer of more than 4300 digits, or thousands of nested values
        return "..."
    return text if len(text) <= 80 or isinstance(value, Path) else text[:77] + "..."


def _section_type(annotation: Any) -> type[Section]:
    (kind,) = (part for part in _alternatives(annotation) if isinstance(part, type) and issubclass(part, Section))
    return kind


def _key(section: str, name: str, field: FieldInfo) -> Key:
    python_type, metadata = _unwrap(field)
    is_size = any(isinstance(item, BeforeValidator) and item.func is parse_bytes for item in metadata)
    return Key(
        section=section,
        name=name,
        kind=_SIZE if is_size else _kind(python_type),
        bounds=_bounds(metadata, _size if is_size else str),
        default=_default(field, is_size),
        python_type=python_type,
    )


def _alternatives(annotation: Any) -> Iterator[Any]:
    """The members of a union without None; a type that is no union is its own only member."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return (member for member in members if member is not type(None))


def _unwrap(field: FieldInfo) -> tuple[Any, list[Any]]:
    """The field's type without None, and the constraints on it wherever they were written."""
    (python_type,) = _alternatives(field.annotation)
    metadata = list(field.metadata)
    if get_origin(python_type) is Annotated:
        python_type, *inner = get_args(python_type)
        for item in inner:
            metadata += item.metadata if isinstance(item, FieldInfo) else [item]
    return python_type, metadata


def _kind(python_type: Any) -> str:
    origin, args = get_origin(python_type), get_args(python_type)
    if origin is Literal:
        return "one of " + ", ".join(show(arg) for arg in args)
    if origin is tuple:
        return "a list of texts" if args == (str, ...) else f"a list of {len(args)} numbers"
    return "a table" if origin is dict else _KINDS[python_type]


def _bounds(metadata: list[Any], write: Callable[[Any], str]) -> str:
    at_least = next((item.ge for item in metadata if isinstance(item, Ge)), None)
    at_most = next((item.le for item in metadata if isinstance(item, Le)), None)
    if at_least is not None and at_most is not None:
        return f"from {write(at_least)} to {write(at_most)}"
    words = {Ge: ("at least", "ge"), Gt: ("above", "gt"), Le: ("at most", "le"), Lt: ("below", "lt")}
    known = [(item, *words[type(item)]) for item in metadata if type(item) in words]
    return " and ".join(f"{word} {write(getattr(item, attribute))}" for item, word, attribute in known)


def _size(count: int) -> str:
    """Bytes as they would be written in TOML, without the quotes."""
    return format_bytes(count, digits=0).replace(" ", "").replace(".0", "") if count else "0"


def _default(field: FieldInfo, is_size: bool) -> str:
    if field.is_required():
        return REQUIRED
    default = field.get_default(call_default_factory=True)
    if default is None:
        return NOT_SET
    if is_size:
        return show(_size(default))
    return "{}" if default == {} else show(default)
