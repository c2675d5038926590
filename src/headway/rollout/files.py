"""Problems from .jsonl, .json and .parquet files."""

import json
import tempfile
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from headway.errors import InputError

Chat = tuple[Mapping[str, str], ...]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """A problem as its source has it, before it becomes a prompt.

    `prompt` is the problem's text, and what makes it distinct; `chat` its messages where the source has messages;
    `entry` what a task's own scorer needs; `place` where it stands, for messages.

    >>> Record("2 + 2?", "4", None, None, "line 3 of sums.jsonl").label
    '4'
    """

    prompt: str
    label: str
    chat: Chat | None
    entry: bytes | None
    place: str


def read_records(file: Path, prompt_key: str, label_key: str) -> Generator[Record, None, None]:
    """The file's records in order, one at a time.

    Raises InputError for a file that is missing, empty or not what its ending says, for a row without one of the
    keys, and for a prompt or label of a kind that cannot be one; it names the row.
    """
    if not file.is_file():
        raise InputError(f"{file}: there is no such file")
    rows = READERS.get(file.suffix.lower())
    if rows is None:
        raise InputError(f"{file}: is read by its ending; it must be one of {', '.join(READERS)}")
    empty = True
    for place, row in rows(file):
        empty = False
        yield _record(row, f"{place} of {file.name}", prompt_key, label_key)
    if empty:
        raise InputError(f"{file}: holds no problems")


# -- formats ---------------------------------------------------------------------------------------------


def _json_lines(file: Path) -> Iterator[tuple[str, Row]]:
    """One object per line, read by Python's own reader.

    The JSON loader of `datasets` is not used: it infers a type for each column and changes labels by it. "2024-01-01"
    becomes a time, 1 beside 2.5 becomes 1.0, and large integers lose digits (datasets 5.2).
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                place = f"line {number}"
                yield place, _object(_parse(line, f"{place} of {file}"), f"{place} of {file}")


def _json(file: Path) -> Iterator[tuple[str, Row]]:
    """A list of objects, or one object per line."""
    with file.open("rb") as stream:
        if not stream.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            yield from _json_lines(file)
            return
    for number, value in enumerate(_parse(file.read_bytes(), str(file)), start=1):
        place = f"item {number}"
        yield place, _object(value, f"{place} of {file}")


def _parquet(file: Path) -> Iterator[tuple[str, Row]]:
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
                yield f"row {number}", row
        except (ValueError, OSError) as error:  # pyarrow.ArrowInvalid is a ValueError
            raise InputError(f"{file}: is not a Parquet file: {error}") from None


READERS = {".jsonl": _json_lines, ".json": _json, ".parquet": _parquet}


def _parse(text: bytes, place: str) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: is not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: is not JSON: {error}") from None


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
    return Record(text, _label(row[label_key], f"{place}: {label_key}"), chat, None, place)


def _missing(setting: str, key: str, row: Row, place: str) -> str:
    near = get_close_matches(key, row, n=1, cutoff=0.5)
    advice = f'set {setting} = "{near[0]}"' if near else f"set {setting} to one of them"
    return f'{setting} = "{key}": {place} has no such key; it has {", ".join(row) or "none"}; {advice}'


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
