"""A copy of a launch script with some flags changed where they are set, and nothing else: `--patch OUT`.

A change is tried where the flag's value is written, in order: the variable's assignment or default that nothing else
uses, the word itself, a further flag beside its neighbours. Each try is read again as the script was, and holds only
if the training command then has exactly the flags that were asked for; so what cannot be changed is refused.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from difflib import unified_diff
from pathlib import Path

from msgspec import Struct

from headway.errors import InputError
from headway.foreign import hydra, openrlhf, slime
from headway.foreign.command import Line, split
from headway.foreign.found import Found
from headway.foreign.readers import settings_of
from headway.foreign.shell import Script, read_text
from headway.foreign.shell.values import Item, Origin, Word, worlds

Read = Callable[[Script], Found]
"""Reads the settings of a script again."""

MOST_WORLDS = 16
_NAME = r"[A-Za-z_]\w*"
_USE = re.compile(rf"""(["']?)\$(?:({_NAME})|\{{({_NAME})\}})\1""")
_DEFAULT = re.compile(rf"""(["']?)\$\{{({_NAME}):?[-=](.*)\}}\1""", re.DOTALL)
_PLAIN = re.compile(r"""(["']?)([^\s"'$`\\(){};|&<>*?#]*)\1""")


class Edit(Struct, frozen=True):
    """One flag to set, or to take away (`gone`). `value` None: a flag that takes no value.

    >>> Edit("max-tokens-per-gpu", "4096").value
    '4096'
    """

    name: str
    value: str | None = None
    gone: bool = False


class Patched(Struct, frozen=True):
    """A script's new text, with what was done where, in words, and the change as a diff.

    >>> patched = patch("run.sh", "python3 train.py --rollout-batch-size 8 --lr 1", [Edit("lr", "2")])
    >>> patched.text
    'python3 train.py --rollout-batch-size 8 --lr 2'
    """

    text: str
    notes: tuple[str, ...]
    diff: str


Flags = dict[str, tuple[tuple[str, ...], ...]]


class _Reading(Struct, frozen=True):
    """What is the same in the copy but for the edits: the flags and words in every world, and all other commands."""

    worlds: tuple[tuple[Flags, tuple[str, ...]], ...]
    others: tuple[tuple[str, ...], ...]


class _Place(Struct, frozen=True):
    """One occurrence of a flag: the words that it is written as; `value` is where its value is, None without one."""

    flag: Origin
    values: tuple[Word, ...]
    joined: bool


class _Editor:
    """Edits one text, byte by byte, and reads it again after each try."""

    def __init__(self, name: str, text: str, read: Read, path: Path | None, root: Path | None) -> None:
        self.name, self.text, self.read, self.path, self.root = name, text, read, path, root
        self.notes: list[str] = []
        self.script, self.found = self._again(text)

    def _again(self, text: str) -> tuple[Script, Found]:
        script = read_text(text, self.name, self.path, self.root)
        return script, self.read(script)

    @property
    def data(self) -> bytes:
        return self.text.encode()

    # -- reading -----------------------------------------------------------------------------------------

    def lines(self, found: Found) -> list[Line]:
        """The training command's flags in every world, Hydra's overrides among them as flags."""
        switches = openrlhf.SWITCHES if found.system == "openrlhf" else slime.SWITCHES
        lines = []
        for world in worlds(found.argv):
            lines.append(split(world, switches) if found.system != "verl" else Line({}, _only_words(world)))
            if len(lines) >= MOST_WORLDS:
                break
        return lines

    def reading(self, script: Script, found: Found) -> _Reading:
        """What must stay as it is."""
        seen: list[tuple[Flags, tuple[str, ...]]] = []
        for line in self.lines(found):
            flags = {
                name: tuple(tuple(word.shown for word in flag.values) for flag in given)
                for name, given in line.flags.items()
            }
            words = [word.shown for word in line.words]
            if found.system == "verl":
                flags, words = _overrides(line.words)
            seen.append((flags, tuple(words)))
        others = [
            tuple(item.shown if isinstance(item, Word) else item.why for item in command.argv)
            for command in script.commands
            if command.at.line != (found.at.line if found.at else 0) and found.program not in _texts(command.argv)
        ]
        return _Reading(tuple(seen), tuple(others))

    def places(self, name: str) -> list[_Place]:
        """Where a flag is written: its last occurrence in each world, each place once."""
        found: dict[tuple[object, ...], _Place] = {}
        for line in self.lines(self.found):
            for place in _places_in(line, name, self.found.system == "verl"):
                found[place.flag, *(word.at for word in place.values)] = place
        return list(found.values())

    # -- one edit ----------------------------------------------------------------------------------------

    def make(self, edit: Edit) -> None:
        """Make an edit. InputError where the script does not allow it."""
        places = self.places(edit.name)
        foreign = [place for place in places if place.flag.file != self.name]
        if edit.gone and not places:
            return
        if edit.gone and foreign:
            raise InputError(
                f"{self._shown(edit.name)} stands in {foreign[0].flag}, a file that the script sources and that is "
                "not touched; take it away there"
            )
        tries = self._tries(edit, places)
        for text, note in tries:
            if text != self.text and self._holds(text, edit):
                self.text = text
                self.script, self.found = self._again(text)
                self.notes.append(note)
                return
        if self._same_already(edit):
            return
        raise InputError(self._why_not(edit, places))

    def _tries(self, edit: Edit, places: Sequence[_Place]) -> Iterator[tuple[str, str]]:
        own = [place for place in places if place.flag.file == self.name]
        if edit.gone:
            yield from self._without(edit, own)
            return
        if own and len(own) == len(places):
            yield from self._replaced(edit, own)
        if not own or len(own) < len(places):
            why = f"; {places[0].flag} sets it too, and is not touched" if places else ""
            yield from self._added(edit, why)

    def _holds(self, text: str, edit: Edit) -> bool:
        """Whether a text is the same launch but for the edit."""
        try:
            script, found = self._again(text)
        except InputError:
            return False
        before, after = self.reading(self.script, self.found), self.reading(script, found)
        # branches that differed in this flag alone are one after the edit, so each way counts once
        same = before.others == after.others and _but_for(before, edit.name) == _but_for(after, edit.name)
        wanted = () if edit.value is None else (edit.value,)
        given = [flags.get(edit.name) for flags, _ in after.worlds]
        if edit.gone:
            return same and not any(given)
        return same and all(each is not None and each[-1] == wanted for each in given)

    def _same_already(self, edit: Edit) -> bool:
        wanted = () if edit.value is None else (edit.value,)
        seen = self.reading(self.script, self.found).worlds
        return bool(seen) and all(flags.get(edit.name, ((None,),))[-1] == wanted for flags, _ in seen)

    def _shown(self, name: str) -> str:
        return name if self.found.system == "verl" else f"--{name}"

    def _written(self, edit: Edit) -> str:
        """An edit as the script has it."""
        word = self._shown(edit.name)
        if edit.value is None:
            return word
        return f"{word}={edit.value}" if self.found.system == "verl" else f"{word} {shlex.quote(edit.value)}"

    def _why_not(self, edit: Edit, places: Sequence[_Place]) -> str:
        what = self._shown(edit.name)
        if not places:
            return f"{what} cannot be added: the training command has no place in {self.name} that can be edited"
        place = places[0]
        if place.flag.start < 0:
            why = f"it stands in a text that another shell reads, or a loop makes it ({place.flag})"
        else:
            raw = self.data[place.flag.start : place.flag.end].decode(errors="replace")
            value = place.values[-1].shown if place.values else ""
            why = f"{raw[:60]} {value[:60]} in line {place.flag.line} is not written as a value that can be changed"
        return f"{what} cannot be changed in place: {why}; change it by hand to {edit.value or 'what is asked'}"

    # -- replacing a value -------------------------------------------------------------------------------

    def _replaced(self, edit: Edit, places: Sequence[_Place]) -> Iterator[tuple[str, str]]:
        value = edit.value
        if value is None:
            return
        for use_variables in (True, False):
            changes = [self._value_change(place, value, use_variables) for place in places]
            if any(change is None for change in changes):
                continue
            data, told = self.data, []
            for start, end, new, line in sorted({change for change in changes if change is not None}, reverse=True):
                told.append(f"line {line}: {self._written(edit)}")
                data = data[:start] + new + data[end:]
            yield data.decode(), "; ".join(reversed(told))

    def _value_change(self, place: _Place, value: str, use_variables: bool) -> tuple[int, int, bytes, int] | None:
        """(start, end, new bytes, line) of the change that gives one occurrence another value."""
        if len(place.values) != 1:
            return None
        word = place.values[0]
        at = word.at
        if at is None or at.start < 0 or at.file != self.name:
            return None
        start, end = at.start, at.end
        raw = self.data[start:end].decode(errors="replace")
        if place.joined:
            head = raw.index("=") + 1 if "=" in raw else 0
            if not head:
                return self._in_a_string(place, raw, value)
            start += len(raw[:head].encode())
            raw = raw[head:]
            if raw[-1:] in "\"'" and raw[:1] != raw[-1:]:  # "key=value" in quotes
                raw = raw[:-1]
                end -= 1
        if place.flag.start == at.start and not place.joined:
            return self._in_a_string(place, raw, value)
        change = self._at_variable(raw, word, value) if use_variables else None
        if change is not None:
            return change
        within = _inside(raw, value)
        if within is None:
            return None
        low, high, new = within
        return start + len(raw[:low].encode()), start + len(raw[:high].encode()), new.encode(), at.line

    def _at_variable(self, raw: str, word: Word, value: str) -> tuple[int, int, bytes, int] | None:
        """The change at the assignment of the variable that a word uses alone, where nothing else uses it."""
        match = _USE.fullmatch(raw)
        if match is None:
            return None
        name = match[2] or match[3]
        held = self.script.variables.get(name)
        if not isinstance(held, Word) or held.at is None or held.at.start < 0 or held.shown != word.shown:
            return None
        at = held.at
        if at.file != self.name or self._uses(name, at) != 1:
            return None
        inner = self.data[at.start : at.end].decode(errors="replace")
        change = self._at_variable(inner, held, value)
        if change is not None:
            return change
        within = _inside(inner, value)
        if within is None:
            return None
        low, high, new = within
        return at.start + len(inner[:low].encode()), at.start + len(inner[:high].encode()), new.encode(), at.line

    def _uses(self, name: str, at: Origin) -> int:
        """How often a variable is used outside of its own assignment."""
        outside = (self.data[: at.start] + b" " + self.data[at.end :]).decode(errors="replace")
        return len(re.findall(rf"\$\{{?[#!]?{name}\b", outside)) + len(
            re.findall(rf"\bexport {name}\b(?!=)", outside)
        )

    def _in_a_string(self, place: _Place, raw: str, value: str) -> tuple[int, int, bytes, int] | None:
        """The change within a text of several words: a variable that holds flags as one string."""
        match = _USE.fullmatch(raw)
        held = self.script.variables.get(match[2] or match[3]) if match else None
        if not isinstance(held, Word) or held.at is None or held.at.start < 0 or held.at.file != self.name:
            return None
        text = self.data[held.at.start : held.at.end].decode(errors="replace")
        old = place.values[0].shown
        found = list(re.finditer(rf"--{re.escape(self._flag_in(place))}(=|\s+)({re.escape(old)})(?![\w.])", text))
        if not found:
            return None
        low, high = found[-1].span(2)
        start = held.at.start + len(text[:low].encode())
        return start, start + len(text[low:high].encode()), value.encode(), held.at.line

    def _flag_in(self, place: _Place) -> str:
        """The name of the flag that a place is of."""
        for line in self.lines(self.found):
            for name, given in line.flags.items():
                if any(flag.values == place.values and flag.at == place.flag for flag in given):
                    return name
        return ""

    # -- taking a flag away ------------------------------------------------------------------------------

    def _without(self, edit: Edit, places: Sequence[_Place]) -> Iterator[tuple[str, str]]:
        """Without the whole line where the flag has it for itself, else without its words."""
        all_places = self._all(edit.name) or list(places)
        if any(place.flag.start < 0 or place.flag.file != self.name for place in all_places):
            return
        note = "; ".join(f"line {place.flag.line}: without {self._shown(edit.name)}" for place in all_places)
        for whole_lines in (True, False):
            data = self.data
            for place in sorted(all_places, key=lambda place: -place.flag.start):
                ends = [word.at.end for word in place.values if word.at is not None]
                start, end = place.flag.start, max([place.flag.end, *ends])
                begin = data.rfind(b"\n", 0, start) + 1
                stop = data.find(b"\n", end)
                stop = len(data) if stop < 0 else stop
                alone = not data[begin:start].strip() and data[end:stop].strip() in (b"", b"\\")
                if whole_lines and alone:
                    start, end = begin, min(stop + 1, len(data))
                elif data[start - 1 : start] == b" ":
                    start -= 1
                data = data[:start] + data[end:]
            yield data.decode(), note

    def _all(self, name: str) -> list[_Place]:
        found: dict[int, _Place] = {}
        for line in self.lines(self.found):
            for flag in line.flags.get(name, ()):
                if flag.at is not None:
                    found[flag.at.start] = _Place(flag.at, flag.values, joined=False)
        return list(found.values())

    # -- adding a flag -----------------------------------------------------------------------------------

    def _added(self, edit: Edit, why: str) -> Iterator[tuple[str, str]]:
        """Beside a neighbour: on a line of its own where the neighbour has one, else behind its value."""
        new = self._written(edit)
        data = self.data
        for start, end, line in self._neighbours(edit.name):
            begin = data.rfind(b"\n", 0, start) + 1
            stop = data.find(b"\n", end)
            stop = len(data) if stop < 0 else stop
            indent = data[begin:start]
            note = f"line {line}: {new} added{why}"
            rest = data[end:stop].rstrip()
            if not indent.strip():
                tail = b" \\" if rest.endswith(b"\\") else b""
                grown = data[:stop] + b"\n" + indent + new.encode() + tail + data[stop:]
                yield grown.decode(), note.replace(f"line {line}", f"line {line + 1}")
            yield (data[:end] + b" " + new.encode() + data[end:]).decode(), note

    def _neighbours(self, name: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, line) of flags beside which another may stand: those of its topic first, then from the end."""
        spans: dict[str, tuple[int, int, int]] = {}
        for line in self.lines(self.found)[:1]:
            given = _starts(line, self.found.system == "verl")
            for key, first, values in given:
                ends = [word.at.end for word in values if word.at is not None and word.at.file == self.name]
                if first.at is not None and first.at.start >= 0 and first.at.file == self.name:
                    spans[key] = (first.at.start, max([first.at.end, *ends]), first.at.line)
        near = [topic for topic in TOPICS if name.rpartition(".")[2] in topic]
        order = [key for topic in near for key in topic if key in spans]
        prefix = name.rpartition(".")[0]
        if prefix:
            order += [key for key in reversed(spans) if key.rpartition(".")[0] == prefix]
        order += [key for key in reversed(spans) if key not in order]
        yield from (spans[key] for key in dict.fromkeys(order))


TOPICS: tuple[tuple[str, ...], ...] = (
    ("recompute-num-layers", "recompute-method", "recompute-granularity", "gradient-checkpointing",
     "use-dynamic-batch-size", "max-tokens-per-gpu", "micro-batch-size", "context-parallel-size",
     "expert-tensor-parallel-size", "expert-model-parallel-size", "tensor-model-parallel-size", "train-backend"),
    ("lora-rank", "lora-alpha", "train-backend", "optimizer-cpu-offload", "use-precision-aware-optimizer",
     "overlap-cpu-optimizer-d2h-h2d", "optimizer", "lr", "no-keep-fp32-master"),
    ("sglang-mem-fraction-static", "rollout-num-gpus-per-engine", "sglang-context-length"),
    ("global-batch-size", "rollout-batch-size", "n-samples-per-prompt", "rollout-max-response-len",
     "rollout-max-prompt-len", "rollout-max-context-len", "num-rollout"),
    ("kl-coef", "kl-loss-coef", "kl-loss-type", "advantage-estimator", "use-kl-loss"),
    ("load", "save", "save-interval", "ref-load", "hf-checkpoint"),
    ("vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_enable_sleep"),
    ("gradient_checkpointing", "per_device_train_batch_size", "micro_train_batch_size", "adam_offload", "zero_stage"),
)  # fmt: skip
"""Flags that stand together in launch scripts: a new one goes beside the first of its topic that is there."""


def patch(
    name: str,
    text: str,
    edits: Sequence[Edit],
    *,
    read: Read = settings_of,
    path: Path | None = None,
    root: Path | None = None,
    out: str = "",
) -> Patched:
    """The text of a script with the edits. `path` and `root` as for `read_script`: what may be sourced.

    InputError names every edit that the script does not allow, with the reason; nothing is changed then.
    """
    editor = _Editor(name, text, read, path, root)
    problems: list[str] = []
    for edit in edits:
        try:
            editor.make(edit)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    lines = unified_diff(
        text.splitlines(keepends=True), editor.text.splitlines(keepends=True), name, out or f"{name} (patched)"
    )
    return Patched(editor.text, tuple(editor.notes), "".join(lines))


# -- from a remedy's words to edits -----------------------------------------------------------------------

_CHANGED = re.compile(r"^(.*[ =])\S+ -> (\S+)$")
_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=[^=\s]+")


def edits_of(text: str, found: Found) -> tuple[Edit, ...]:
    """A change in a system's own flags as edits of its script: `--a 8 -> 4`, `no --b`, `--c`, `key=value`.

    A flag that is not given, and is to have the value that it has anyway, is left out. InputError for words that are
    no flags.

    >>> found = Found("slime", {}, derived={"kl_coef": 0.0})
    >>> edits_of("--sglang-mem-fraction-static 0.4 -> 0.2", found)
    (Edit(name='sglang-mem-fraction-static', value='0.2', gone=False),)
    >>> edits_of("no --use-kl-loss and --kl-coef 0 (free where --kl-loss-coef is 0)", found)
    (Edit(name='use-kl-loss', value=None, gone=True),)
    """
    edits: list[Edit] = []
    for part in re.sub(r"\s*\([^)]*\)", "", text).split(" and "):
        changed = _CHANGED.match(part)
        edits += _from_words(f"{changed[1]}{changed[2]}".split() if changed else part.split(), text, found)
    return tuple(edit for edit in edits if not _by_default(edit, found))


def _from_words(words: list[str], text: str, found: Found) -> Iterator[Edit]:
    place = 0
    while place < len(words):
        word = words[place]
        after = words[place + 1] if place + 1 < len(words) else None
        if word in ("no", "without") and after is not None and after.startswith("--"):
            yield Edit(after[2:], gone=True)
            place += 2
        elif word.startswith("--"):
            takes = after is not None and not after.startswith("--")
            yield Edit(word[2:], after if takes else None)
            place += 2 if takes else 1
        elif found.system == "verl" and _OVERRIDE.fullmatch(word):
            key, _, value = word.partition("=")
            yield Edit(key, value)
            place += 1
        else:
            raise InputError(f"{text}: is no change of flags that can be written into a script; make it by hand")


def _by_default(edit: Edit, found: Found) -> bool:
    """Whether a flag that is not given is to have its default."""
    if edit.gone or edit.value is None or edit.name in found.flags:
        return False
    key = next((rule.key for rule in slime.RULES if edit.name in rule.flags), None)
    default = found.derived.get(key) if key is not None and found.system in ("slime", "miles") else None
    if default is None:
        return False
    try:
        return float(str(default)) == float(edit.value)
    except ValueError:
        return str(default) == edit.value


# -- pieces -----------------------------------------------------------------------------------------------


def _inside(raw: str, value: str) -> tuple[int, int, str] | None:
    """(start, end, new text) within a word that give it another value; None where it is not plain enough.

    >>> _inside("'8'", "4"), _inside("${A:-${B:-8}}", "4"), _inside("$((2*4))", "4"), _inside("a$(b)", "4")
    ((1, 2, '4'), (10, 11, '4'), (0, 8, '4'), (0, 5, '4'))
    """
    plain = _PLAIN.fullmatch(raw)
    if plain is not None:
        return plain.start(2), plain.end(2), value
    default = _DEFAULT.fullmatch(raw)
    if default is not None:
        inner = _inside(default[3], value)
        if inner is not None:
            start = default.start(3)
            return start + inner[0], start + inner[1], inner[2]
    quoted = len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "\"'"
    return (1, len(raw) - 1, value) if quoted else (0, len(raw), value)


def _only_words(world: Sequence[Item]) -> tuple[Word, ...]:
    return tuple(item for item in world if isinstance(item, Word))


def _texts(items: Sequence[Item]) -> list[str]:
    return [item.shown for item in items if isinstance(item, Word)]


def _overrides(words: Sequence[Word]) -> tuple[Flags, list[str]]:
    """Hydra's overrides as flags, and the words that are none."""
    flags: Flags = {}
    rest: list[str] = []
    for word in words:
        read = hydra.override(word)
        if read is None:
            rest.append(word.shown)
        else:
            flags[read.key] = (*flags.get(read.key, ()), (word.shown.partition("=")[2],))
    return flags, rest


def _places_in(line: Line, name: str, is_hydra: bool) -> Iterator[_Place]:
    if is_hydra:
        for word in reversed(line.words):
            read = hydra.override(word)
            if read is not None and read.key == name and word.at is not None:
                first = word.parts[0]
                rest = first.partition("=")[2] if isinstance(first, str) else ""
                value = Word(tuple(part for part in (rest, *word.parts[1:]) if part != ""), word.at)
                yield _Place(word.at, (value,), joined=True)
                return
        return
    flag = line.last(name)
    if flag is not None and flag.at is not None:
        joined = bool(flag.values) and flag.values[0].at == flag.at and flag.at.start >= 0
        yield _Place(flag.at, flag.values, joined)


def _starts(line: Line, is_hydra: bool) -> list[tuple[str, Word, tuple[Word, ...]]]:
    """(name, the word that it begins with, its values) of everything that a command is given."""
    if is_hydra:
        return [(read.key, word, ()) for word in line.words if (read := hydra.override(word)) is not None]
    return [(flag.name, Word((), flag.at), flag.values) for flags in line.flags.values() for flag in flags]


def _but_for(reading: _Reading, name: str) -> set[object]:
    """The ways that a launch may go, without one flag."""
    return {
        (tuple((key, value) for key, value in flags.items() if key != name), words) for flags, words in reading.worlds
    }
