"""A run's settings from its log: the arguments that trainers print at their start, or a shell's trace of the command.

slime, Miles and Megatron print a table of `  name ...... value` lines, OpenRLHF a `Namespace(...)`, verl its whole
configuration as a table of Python, TRL's scripts their records. A log of any size is read only at its start.
"""

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import InputError
from headway.foreign import megatron_lm, miles, openrlhf, slime, trl, verl
from headway.foreign.command import split
from headway.foreign.documents import Table
from headway.foreign.found import Found
from headway.foreign.hydra import Config
from headway.foreign.shell import Command, Script, read_text
from headway.foreign.shell.values import Origin, Word, known
from headway.foreign.trl_claims import MARKS

LARGEST = 16 << 20
"""Bytes of a log's start that are searched: what is printed later is not printed at the start."""
LONGEST = 256 << 10
"""Bytes of the longest block of arguments."""
DEEPEST = 12
MOST_BLOCKS = 8

COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PREFIX = re.compile(
    r"^(?:\(\w[^()]{0,60} pid=\d+[^()]{0,60}\) ?|\d{1,5}: |\[rank\d{1,5}\]: ?|\[?\w{1,40}\]?:\s(?=\s))"
)
TABLE = re.compile(r"(?<!-)-{4,} arguments -{4,}")
END = re.compile(r"(?<!-)-{4,} end of (?:\w{1,20} )?arguments -{4,}")
ROW = re.compile(r"(?:^|\s)([A-Za-z_]\w*) \.{2,} ?(.*)$")
NAMES = "Namespace|GRPOConfig|SFTConfig|RLOOConfig|DPOConfig|ModelConfig|TrainingArguments"
RECORD = re.compile(rf"(?:^|[\s:])({NAMES})\(")
CONFIG = re.compile(r"\{'(?:actor_rollout_ref|algorithm)': ?\{")
TRACE = re.compile(
    r"^(?:\++ +|.{0,80}?\bEXEC: )(.*(?:python|torchrun|accelerate|deepspeed|ray job submit|trl ).*)$", re.MULTILINE
)
"""A command as `set -x` prints it, or as the Python launchers of Miles and slime do before they run it."""


class Dump(Struct, frozen=True):
    """One block of arguments: how it was printed, its values by name, and the line where it begins, from 1.

    >>> dumps("--- x ---\\nNamespace(pretrain='a/b', zero_stage=3)")[0].values
    {'pretrain': 'a/b', 'zero_stage': 3}
    """

    kind: str
    values: Table
    line: int


def read(path: Path) -> Found | None:
    """The settings of the run whose log this is; None where it prints none. InputError where it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    return read_log(data.decode(errors="replace"), str(path))


def read_log(text: str, name: str = "log") -> Found | None:
    """The settings of the run that printed a text; None where it prints none."""
    text = text[:LARGEST].replace("\r\n", "\n")
    found = dumps(text)
    for reader in (_verl, _rows, _openrlhf, _trl):
        record = reader(found, name)
        if record is not None:
            line = found[0].line
            notes = (*record.notes, f"read from the arguments that the run printed, from line {line} of {name}")
            return replace(record, notes=notes, at=Origin(name, line))
    return _traced(text, name)


# -- finding the blocks --------------------------------------------------------------------------------------


def dumps(text: str) -> list[Dump]:
    """The blocks of arguments in a log, in their order; of each kind the first few."""
    found: list[Dump] = []
    for signs, pattern, reader in FORMS:
        place = 0
        if not any(sign in text for sign in signs):
            continue  # searching for a word is much faster than for a pattern
        for _ in range(MOST_BLOCKS):
            match = pattern.search(text, place)
            if match is None:
                break
            dump, place = reader(text, match)
            if dump is not None and dump.values:
                found.append(dump)
    return sorted(found, key=lambda each: each.line)


def _line_of(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _plain(line: str) -> tuple[str, str]:
    """(prefix of the process, rest) of a line without its colours."""
    line = COLOURS.sub("", line)
    match = PREFIX.match(line)
    return (match[0].strip(), line[match.end() :]) if match else ("", line)


def _window(text: str, start: int) -> Iterator[str]:
    """The lines from the one that holds a position, those of the same process only, without its prefix."""
    begin = text.rfind("\n", 0, start) + 1
    lines = text[begin : start + LONGEST].split("\n")
    prefix, _ = _plain(lines[0])
    for line in lines:
        own, rest = _plain(line)
        if own == prefix:
            yield rest


def _table(text: str, match: re.Match[str]) -> tuple[Dump | None, int]:
    """`  name ...... value` lines up to the end of the table."""
    values: Table = {}
    size = 0
    for index, line in enumerate(_window(text, match.start())):
        size += len(line)
        if index and (END.search(line) or TABLE.search(line)):
            break
        row = ROW.search(line)
        if row is not None:
            values.setdefault(row[1], _value(row[2].strip()))
    return Dump("table", values, _line_of(text, match.start())), match.end()


def _record(text: str, match: re.Match[str]) -> tuple[Dump | None, int]:
    """`Name(key=value, ...)`, on one line or on many."""
    line = _line_of(text, match.start(1))
    begin = text.rfind("\n", 0, match.start(1)) + 1
    joined = "\n".join(_window(text, match.start(1)))[:LONGEST]
    shift = joined.find(match[1] + "(", max(0, match.start(1) - begin - 200))
    if shift < 0:
        return None, match.end()
    start = shift + len(match[1])
    end = _closed(joined, start)
    if end < 0:
        return None, match.end()
    values = _fields(joined[start + 1 : end], 0)
    return Dump(match[1], values, line), match.end() + (end - start if "\n" not in joined[start:end] else 0)


def _config(text: str, match: re.Match[str]) -> tuple[Dump | None, int]:
    """A configuration printed as a table of Python."""
    joined = "\n".join(_window(text, match.start()))
    start = joined.find("{'")
    end = _closed(joined, start) if start >= 0 else -1
    if end < 0:
        return None, match.end()
    found = _value(joined[start : end + 1], LONGEST)
    values = found if isinstance(found, dict) else {}
    return Dump(
        "config", {str(key): value for key, value in values.items()}, _line_of(text, match.start())
    ), match.end()


OPEN, CLOSE = "([{", ")]}"


def _closed(text: str, start: int) -> int:
    """The position of the bracket that closes the one at `start`; -1 where it stays open."""
    depth, quote, place = 0, "", start
    while place < len(text):
        char = text[place]
        if quote:
            if char == "\\":
                place += 1
            elif char == quote or char == "\n":
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in OPEN:
            depth += 1
        elif char in CLOSE:
            depth -= 1
            if depth == 0:
                return place
        place += 1
    return -1


def _fields(text: str, depth: int) -> Table:
    """`key=value` parts between commas, records within them as tables."""
    found: Table = {}
    for part in _parts(text):
        key, equals, raw = part.partition("=")
        key, raw = key.strip(), raw.strip()
        if not equals or not re.fullmatch(r"[\w.]+|\*\*\{.*", key):
            continue
        inner = re.match(r"(?:[\w.]*Namespace|[\w.]+Config)\(", raw)
        if inner is not None and raw.endswith(")") and depth < DEEPEST:
            found[key] = _fields(raw[inner.end() : -1], depth + 1)
        else:
            found[key] = _value(raw)
    return found


def _parts(text: str) -> Iterator[str]:
    """A text cut at the commas outside brackets and quotes."""
    depth, quote, start, place = 0, "", 0, 0
    while place < len(text):
        char = text[place]
        if quote:
            if char == "\\":
                place += 1
            elif char in (quote, "\n"):
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in OPEN:
            depth += 1
        elif char in CLOSE:
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:place]
            start = place + 1
        place += 1
    yield text[start:]


def _value(raw: str, longest: int = 4096) -> object:
    """A value as Python prints it; what is no literal stays text."""
    if len(raw) > longest:
        return raw[:longest]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # text such as "\d" is no literal that anybody here wrote
            return ast.literal_eval(raw)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return raw


FORMS: tuple[
    tuple[tuple[str, ...], re.Pattern[str], Callable[[str, re.Match[str]], tuple[Dump | None, int]]], ...
] = (
    (("- arguments -",), TABLE, _table),
    (tuple(f"{name}(" for name in NAMES.split("|")), RECORD, _record),
    (("{'actor_rollout_ref':", "{'algorithm':"), CONFIG, _config),
)
"""Words without which a form is not there, its pattern, and what reads it from a match on."""

# -- from blocks to settings --------------------------------------------------------------------------------

Reader = Callable[[list[Dump], str], Found | None]


def _verl(found: list[Dump], name: str) -> Found | None:
    dump = next((each for each in found if each.kind == "config" and "actor_rollout_ref" in each.values), None)
    if dump is None:
        return None
    actor = dump.values.get("actor_rollout_ref")
    rollout = dump.values.get("rollout")
    is_async = "async_training" in dump.values or (isinstance(rollout, dict) and rollout.get("nnodes"))
    program = "verl.experimental.fully_async_main" if is_async else "verl.trainer.main_ppo"
    if not isinstance(actor, dict):
        return None
    return verl.from_config(Config(base=dump.values, base_name=name), program)


def _rows(found: list[Dump], name: str) -> Found | None:
    """slime, Miles or Megatron-LM: their arguments as flags, those that are None or off left out."""
    dump = next((each for each in found if each.kind == "table"), None)
    if dump is None:
        dump = next((each for each in found if each.kind == "Namespace" and "hidden_size" in each.values), None)
    if dump is None:
        return None
    names = {key.replace("_", "-") for key in dump.values}
    words = list(_words(dump.values, "-", name, dump.line))
    system = "miles" if names & slime.ONLY_MILES or "miles" in name.lower() else "slime"
    script = _script(("python3", "train.py"), words, name, dump.line, system)
    record = (miles.read(script) or slime.read(script)) if len(names & slime.SIGNS) >= 3 else None
    if record is not None and record.settings.get("colocate") is not True:
        why = "the arguments do not tell whether train.py or train_async.py printed them"
        settings = {key: value for key, value in record.settings.items() if key != "mode"}
        return replace(record, settings=settings, unknown={**record.unknown, "mode": why})
    if record is None:
        record = megatron_lm.read(_script(("python3", "pretrain_gpt.py"), words, name, dump.line, ""))
    if record is None or record.system != "megatron":
        return record
    ranks = dump.values.get("world_size")
    if not isinstance(ranks, int) or ranks > 8:
        return record
    return replace(record, derived={**record.derived, "nodes": 1, "gpus_per_node": ranks})


def _script(program: tuple[str, ...], words: list[Word], name: str, line: int, text: str) -> Script:
    at = Origin(name, line)
    argv = (*(known(each, at) for each in program), *words)
    return Script(name, (Command(argv, at),), text=text)


def _words(values: Table, dash: str, name: str, line: int) -> Iterator[Word]:
    """Arguments as the words of a command line; what is None or off is not given."""
    at = Origin(name, line)
    for key, value in values.items():
        if value is None or value is False or isinstance(value, dict):
            continue
        yield known(f"--{key.replace('_', dash)}", at)
        if value is True:
            continue
        for each in value if isinstance(value, list | tuple) else (value,):
            yield known(str(each)[:400].removeprefix("--"), at)


def _openrlhf(found: list[Dump], name: str) -> Found | None:
    signs = {"pretrain", "vllm_num_engines", "zero_stage", "init_kl_coef", "vllm.num_engines", "ds.zero_stage"}
    for dump in found:
        flat = _flat(dump.values)
        if dump.kind == "Namespace" and len(signs & flat.keys()) >= 2:
            words = list(_words(flat, "_", name, dump.line))
            is_rl = any(key in flat for key in ("rollout_batch_size", "rollout.batch_size"))
            program = "openrlhf.cli.train_ppo_ray" if is_rl else "openrlhf.cli.train_sft"
            return openrlhf.from_line(split(words, openrlhf.SWITCHES), program)
    return None


def _flat(values: Table, prefix: str = "", depth: int = 0) -> Table:
    """Records within records by dotted names."""
    found: Table = {}
    for key, value in values.items():
        if isinstance(value, dict) and depth < DEEPEST:
            found |= _flat(value, f"{prefix}{key}.", depth + 1)
        else:
            found[f"{prefix}{key}"] = value
    return found


def _trl(found: list[Dump], name: str) -> Found | None:
    """Several records together: the model's, the trainer's."""
    table: Table = {}
    kinds: list[str] = []
    for dump in found:
        if dump.kind not in ("table", "config") and not table.keys() & dump.values.keys():
            table |= dump.values
            kinds.append(dump.kind)
    if len(trl.PLAIN & table.keys()) + 2 * len(MARKS & table.keys()) < 2:
        return None
    trainer = next((kind for kind in kinds if kind.endswith("Config") and kind != "ModelConfig"), "")
    return trl.from_table(table, name, trainer.removesuffix("Config").lower())


def _traced(text: str, name: str) -> Found | None:
    """A command as `set -x` prints it."""
    for match in islice(TRACE.finditer(text), 64):
        command = match[1]
        if len(command) > LONGEST:
            continue
        script = read_text(command, name)
        for reader in (miles.read, slime.read, verl.read, openrlhf.read, trl.read, megatron_lm.read):
            record = reader(script)
            if record is not None:
                line = _line_of(text, match.start())
                notes = (*record.notes, f"read from the command that the shell printed in line {line} of {name}")
                return replace(record, notes=notes, at=Origin(name, line))
    return None
