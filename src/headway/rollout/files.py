"""Problems from .jsonl, .json and .parquet files."""

import json
import math
import tempfile
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from headway.errors import InputError

Chat = tuple[Mapping[str, str], ...]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """A problem as its source has it, before it becomes a prompt.

    `prompt` is the problem's text, and what makes it distinct; `chat` its messages where the source has messages;
    `entry` what a task's own scorer needs; `place` where it stands, for messages.

    >>> Record("2 + 2?", "4", None, None, 'data.file = "/sums.jsonl", line 3').label
    '4'
    """

    prompt: str
    label: str
    chat: Chat | None
    entry: bytes | None
    place: str


def read_records(
    file: Path, prompt_key: str, label_key: str, setting: str = "data.file"
) -> Generator[Record, None, None]:
    """The file's records in order, one at a time. `setting` is the RunSpec's key that names the file.

    Raises InputError for a file that is missing, empty or not what its ending says, for a row without one of the
    keys, and for a prompt or label of a kind that cannot be one; it names the row.
    """
    source = f'{setting} = "{file}"'
    if file.is_dir():
        raise InputError(f"{source}: is a folder; set it to a {', '.join(READERS)} file")
    if not file.is_file():
        raise InputError(f"{source}: there is no such file")
    rows = READERS.get(file.suffix.lower())
    if rows is None:
        raise InputError(f"{source}: is read by its ending; it must be one of {', '.join(READERS)}")
    empty = True
    for place, row in rows(file, source):
        empty = False
        yield _record(row, place, prompt_key, label_key)
    if empty:
        raise InputError(f"{source}: holds no problems")


# -- formats ---------------------------------------------------------------------------------------------


def _json_lines(file: Path, source: str) -> Iterator[tuple[str, Row]]:
    """One object per line, read by Python's own reader.

    The JSON loader of `datasets` is not used: it infers a type for each column and changes labels by it. "2024-01-01"
    becomes a time, 1 beside 2.5 becomes 1.0, and large integers lose digits (datasets 5.2).
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                place = f"{source}, line {number}"
                yield place, _object(_parse(line, place), place)


def _json(file: Path, source: str) -> Iterator[tuple[str, Row]]:
    """A list of objects, or one object per line."""
    with file.open("rb") as stream:
        if not stream.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            yield from _json_lines(file, source)
            return
    for number, value in enumerate(_parse(file.read_bytes(), source), start=1):
        place = f"{source}, item {number}"
        yield place, _object(value, place)


def _parquet(file: Path, source: str) -> Iterator[tuple[str, Row]]:
    """Rows of a Parquet file, batch by batch through `datasets`, which may leave nothing behind."""
    from datasets import load_dataset

    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "data.parquet")  # datasets reads * ? [ in a path as a pattern
        link.symlink_to(file.absolute())
        try:
            rows = load_dataset(
                "parquet", data_files=str(link), split="train", streaming=True, cache_dir=str(Path(folder, "cache"))
            )
            for number, row in enumerate(rows, start=1):
                yield f"{source}, row {number}", row
        except (ValueError, OSError) as error:  # pyarrow.ArrowInvalid is a ValueError
            raise InputError(f"{source}: is not a Parquet file: {error}") from None


READERS = {".jsonl": _json_lines, ".json": _json, ".parquet": _parquet}


def _parse(text: bytes, place: str) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: is not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: is not JSON: {error}") from None
    except RecursionError:
        raise InputError(f"{place}: is nested too deeply; write it flatter") from None
    except ValueError as error:
        raise InputError(f"{place}: cannot be read: {error}; write that value as text, or remove it") from None


def _no_constant(name: str) -> NoReturn:
    """Python's reader takes NaN and Infinity, which JSON does not have."""
    raise ValueError(f"{name} is not JSON")


def _object(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise InputError(f"{place}: is {_kind(value)}; it must be an object with a prompt and a label")
    return value


# -- rows ------------------------------------------------------------------------------------------------


def _record(row: Row, place: str, prompt_key: str, label_key: str) -> Record:
    missing = [
        _missing(setting, key, row, place)
        for setting, key in (("data.prompt_key", prompt_key), ("data.label_key", label_key))
        if key not in row
    ]
    if missing:
        raise InputError(*missing)
    text, chat = _prompt(row[prompt_key], f"{place}: {prompt_key}")
    label = _label(row[label_key], f"{place}: {label_key}")
    for key, written in ((prompt_key, text), (label_key, label)):
        _encodable(written, f"{place}: {key}")
    for message in chat or ():
        for value in message.values():
            _encodable(str(value), f"{place}: {prompt_key}")
    return Record(text, label, chat, None, place)


def _encodable(text: str, place: str) -> None:
    """JSON can escape half of a surrogate pair, which no tokenizer and no UTF-8 file takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise InputError(f"{place} has {half}, half of a surrogate pair and no character; remove it") from None


def _missing(setting: str, key: str, row: Row, place: str) -> str:
    near = get_close_matches(key, row, n=1, cutoff=0.5)
    advice = f'set {setting} = "{near[0]}"' if near else f"set {setting} to one of them"
    return f'{setting} = "{key}": is no key of {place}; it has {", ".join(row) or "none"}; {advice}'


def _prompt(value: Any, place: str) -> tuple[str, Chat | None]:
    """The problem's text, and its messages where it has some."""
    if isinstance(value, str) and value.strip():
        return value, None
    if not isinstance(value, list) or not value:
        raise InputError(f"{place} is {_kind(value)}; it must be text or a list of chat messages")
    chat = tuple(_message(message, place) for message in value)
    if not any(message["role"] == "user" for message in chat):
        raise InputError(f"{place} has no message with role user")
    if len(chat) == 1:
        return chat[0]["content"], chat
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in chat), chat


def _message(value: Any, place: str) -> dict[str, str]:
    texts = isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))
    if not texts:
        raise InputError(f"{place} holds a message that is not role and content as text")
    return {key: text for key, text in value.items() if text is not None}  # Parquet fills absent keys with null


def _label(value: Any, place: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(
            f"{place} is {value}, which no answer can equal; it must be text, a finite number, or true or false"
        )
    if isinstance(value, str | int | float | Decimal | date | datetime):
        return str(value)
    raise InputError(f"{place} is {_kind(value)}; it must be text, a number, or true or false")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str | list | dict) and not value:
        return f"an empty {'text' if isinstance(value, str) else 'list' if isinstance(value, list) else 'object'}"
    names = {list: "a list", dict: "an object", str: "blank text", bool: "true or false", bytes: "bytes"}
    return names.get(type(value), f"a number ({value})" if isinstance(value, int | float) else type(value).__name__)
