"""Simple commands: what bash itself carries out, functions of the script, and everything else, which is recorded."""

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from headway.foreign.shell import assign, printed
from headway.foreign.shell.conditions import Maybe, Status, Test
from headway.foreign.shell.values import Array, Gap, Item, Origin, Table, Word, array, join, known, reasons, unknown

if TYPE_CHECKING:
    from headway.foreign.shell.evaluate import Evaluator

Signal = Literal["", "exit", "return", "break", "continue"]


class Outcome(Struct, frozen=True):
    """How a statement ended. `program` is the external command whose exit status it is."""

    signal: Signal = ""
    status: Status = True
    program: str = ""


DONE = Outcome()


class Call(Struct, frozen=True):
    """A command with its arguments expanded."""

    name: str
    arguments: tuple[Item, ...]
    at: Origin
    environment: tuple[tuple[str, Word], ...] = ()

    @property
    def words(self) -> list[Word]:
        """The arguments that are words."""
        return [item for item in self.arguments if isinstance(item, Word)]


Builtin = Callable[["Evaluator", Call], Outcome]


def _exit(_run: "Evaluator", call: Call) -> Outcome:
    status = call.words[0].text if call.words else "0"
    return Outcome("exit", status == "0")


def _return(_run: "Evaluator", call: Call) -> Outcome:
    return Outcome("return", (call.words[0].text if call.words else "0") == "0")


def _cd(run: "Evaluator", call: Call) -> Outcome:
    words = [word for word in call.words if word.text not in ("--", "-P", "-L")]
    if call.name == "popd" or not words or words[0].text == "-":
        run.state.folder = unknown("the folder is not known", "PWD")
        return DONE
    path, folder = words[0], run.state.folder
    first = path.parts[0] if path.parts else ""
    if path.text is not None and path.text.startswith("/"):
        run.state.folder = known(posixpath.normpath(path.text))
    elif path.text is not None and folder.text is not None:
        run.state.folder = known(posixpath.normpath(posixpath.join(folder.text, path.text)))
    elif isinstance(first, str) and not first.startswith("/"):
        run.state.folder = join((*folder.parts, "/", *path.parts))
    else:
        run.state.folder = path
    return DONE


def _echo(run: "Evaluator", call: Call) -> Outcome:
    if call.name == "printf" and call.words and call.words[0].text == "-v" and len(call.words) > 1:
        text = printed.printf(call.words[2:])
        name = call.words[1].text
        if name is not None:
            assign.target(run.expander, name, text or unknown("what printf makes is not known", name))
        return DONE
    items = call.arguments
    if any(not isinstance(item, Word) for item in items):
        run.state.write(unknown("; ".join(reasons(items)), "echo", "branch"))
        return DONE
    text = printed.printed(call.name, call.words, run.piped, run.state)
    run.state.write(text if text is not None else unknown(f"what {call.name} prints is not known", call.name))
    return DONE


def _read(run: "Evaluator", call: Call) -> Outcome:
    """`read`: a line of what is piped in, split into variables or an array; unknown where that is not known."""
    names, into, whole = [], "", False
    words = [word.text or "" for word in call.words]
    while words:
        word = words.pop(0)
        if re.fullmatch(r"-[a-zA-Z]*d", word) and words[:1] == [""]:
            whole = bool(words.pop(0) == "")
        elif re.fullmatch(r"-[a-zA-Z]*[dnNptuip]", word):
            if words:
                words.pop(0)
        elif re.fullmatch(r"-[a-zA-Z]*a[a-zA-Z]*", word):
            into = words.pop(0) if words else ""
        elif not word.startswith("-"):
            names.append(word)
    separators = next((word.text for name, word in call.environment if name == "IFS"), None)
    separators = run.expander.separators() if separators is None else separators
    text = run.piped.text if run.piped is not None else None
    if text is None:
        why = run.piped.why if run.piped is not None else "what is read in is not known"
        if into:
            run.state.set(into, Array((Gap(why, into, "machine"),)))
        for name in names:
            assign.target(run.expander, name, unknown(why, name))
        return Outcome("", Maybe(why))
    line, newline, rest = (text.strip(separators), "", "") if whole else text.partition("\n")
    run.piped = known(rest)
    if not text:
        return Outcome("", False)
    if into:
        run.state.set(into, array(known(piece, call.at) for piece in _split(line, separators, 0)))
        return DONE
    pieces = [line.strip(separators)] if len(names) == 1 else _split(line, separators, len(names) - 1)
    for index, name in enumerate(names):
        assign.target(run.expander, name, known(pieces[index] if index < len(pieces) else "", call.at))
    return Outcome("", bool(newline))


def _split(line: str, separators: str, most: int) -> list[str]:
    """A line's pieces; with `most`, the last one holds the rest."""
    if not separators:
        return [line]
    blank = separators.strip() == ""
    line = line.strip(separators) if blank else line
    pattern = f"[{re.escape(separators)}]+" if blank else f"[{re.escape(separators)}]"
    if most < 0 or not line:
        return [line] if line else []
    return re.split(pattern, line, maxsplit=most)


def _mapfile(run: "Evaluator", call: Call) -> Outcome:
    names = [word.text for word in call.words if word.text and not word.text.startswith("-")]
    name = names[-1] if names else "MAPFILE"
    text = run.piped.text if run.piped is not None else None
    if text is None:
        why = run.piped.why if run.piped is not None else "what is read in is not known"
        run.state.set(name, Array((Gap(why, name, "machine"),)))
    else:
        run.state.set(name, array(known(line, call.at) for line in text.splitlines()))
        run.piped = known("")
    return DONE


def _shift(run: "Evaluator", call: Call) -> Outcome:
    count = call.words[0].text if call.words else "1"
    arguments = run.state.arguments
    if count is None or not count.isdigit() or int(count) > len(arguments):
        return Outcome("", False)
    run.state.arguments = arguments[int(count) :]
    return DONE


def _set(run: "Evaluator", call: Call) -> Outcome:
    for index, item in enumerate(call.arguments):
        text = item.text if isinstance(item, Word) else None
        if text == "--":
            run.state.arguments = call.arguments[index + 1 :]
            break
        if text is None or text[:1] not in ("-", "+"):
            if text is None or not (index and _takes_value(call.arguments[index - 1])):
                run.state.arguments = call.arguments[index:]
            break
    return DONE


def _takes_value(item: Item) -> bool:
    """`set -o pipefail`."""
    return isinstance(item, Word) and bool(re.fullmatch(r"[-+][a-zA-Z]*o", item.text or ""))


def _eval(run: "Evaluator", call: Call) -> Outcome:
    parts: list[object] = []
    for index, item in enumerate(call.arguments):
        parts += [" "] if index else []
        if not isinstance(item, Word):
            run.note(call.at, f"eval of words that are not known: {'; '.join(reasons((item,)))[:120]}")
            return Outcome("", Maybe("eval of unknown words"))
        parts += item.parts
    return run.nested(join(parts), call.at)  # type: ignore[arg-type]


def _source(run: "Evaluator", call: Call) -> Outcome:
    if not call.words:
        return Outcome("", False)
    return run.source(call.words[0], call.arguments[1:], call.at)


def _test(run: "Evaluator", call: Call) -> Outcome:
    quoted = []
    for index, word in enumerate(call.words):
        name = f"HEADWAY_OPERAND_{index}"
        plain = word.text is not None and re.fullmatch(r"-?[\w=!<>.]+", word.text)
        if not plain:
            run.state.variables[name] = word
        quoted.append(word.text or "" if plain else f'"${{{name}}}"')
    return Outcome("", Test(run.expander, " ".join(quoted), double=False).whole())


def _let(run: "Evaluator", call: Call) -> Outcome:
    status: Status = True
    for word in call.words:
        value = run.expander.arithmetic(word.text) if word.text is not None else word
        status = Maybe(value.why) if value.text is None else value.text != "0"
    return Outcome("", status)


def _unset(run: "Evaluator", call: Call) -> Outcome:
    for word in call.words:
        name, bracket, index = (word.text or "").partition("[")
        held = run.state.get(name)
        if not bracket:
            run.state.variables.pop(run.state.name(name), None)
            run.state.exported.discard(name)
        elif isinstance(held, Table):
            key = index.rstrip("]")
            run.state.set(name, Table(tuple(entry for entry in held.entries if entry[0] != key)))
        elif isinstance(held, Array):
            number = run.expander.arithmetic(index.rstrip("]"))
            place = held.place(int(number.text)) if number.text is not None else None
            if place is not None and all(isinstance(item, Word) for item in held.items):
                keys = held.keys or tuple(range(len(held.items)))
                left = (each[:place] + each[place + 1 :] for each in (held.items, keys))
                run.state.set(name, array(*left))  # type: ignore[arg-type]
    return DONE


def _jump(_run: "Evaluator", call: Call) -> Outcome:
    return Outcome("break" if call.name == "break" else "continue")


def _nothing(_run: "Evaluator", call: Call) -> Outcome:
    return Outcome("", call.name != "false")


BUILTINS: dict[str, Builtin] = {
    "exit": _exit, "return": _return, "cd": _cd, "pushd": _cd, "popd": _cd, "echo": _echo, "printf": _echo,
    "read": _read, "mapfile": _mapfile, "readarray": _mapfile, "shift": _shift, "set": _set, "eval": _eval,
    "source": _source, ".": _source, "test": _test, "[": _test, "let": _let, "unset": _unset, "break": _jump,
    "continue": _jump,
}  # fmt: skip
BUILTINS |= dict.fromkeys(
    (
        "true",
        "false",
        ":",
        "trap",
        "wait",
        "shopt",
        "ulimit",
        "alias",
        "unalias",
        "umask",
        "hash",
        "disown",
        "getopts",
    ),
    _nothing,
)
BUILTINS["getopts"] = lambda _run, _call: Outcome("", False)

PROBES = frozenset({
    "nvidia-smi", "rocm-smi", "command", "which", "type", "grep", "egrep", "pgrep", "lspci", "diff", "cmp", "curl",
    "nc", "ping", "find", "docker", "lsof", "ls", "stat", "python", "python3", "ibstat", "ip", "hostname", "uname",
})  # fmt: skip
"""Commands that are run to ask something; of others it is taken that they succeed."""

SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
REMOTE = frozenset({"ssh", "pdsh", "tmux", "screen", "su"})
TALKERS = frozenset({"echo", "printf", "cat", "grep", "sed", "awk"})


def external(run: "Evaluator", call: Call) -> Outcome:
    """Everything that bash does not carry out itself: recorded, and what it prints computed where that is plain."""
    run.record(call)
    if CUT_OFF.match(call.name):
        run.note(
            call.at,
            f"{call.name[:60]} begins a command of its own: no backslash ends the line before it, so the run "
            "does not get what follows",
        )
    if run.follows and (inner := inner_file((known(call.name, call.at), *call.arguments))) is not None:
        return run.script_file(inner, call)
    if (text := inner_script(call)) is not None:
        return run.nested(text, call.at, apart=True)
    if run.piped is not None and _reads_script(call):
        run.nested(run.piped, call.at, apart=True)
    if run.state.output is not None:
        text = None
        if all(isinstance(item, Word) for item in call.arguments):
            text = printed.printed(call.name, call.words, run.piped, run.state)
            text = _model_arguments(run, call) if text is None else text
        run.state.write(text if text is not None else _asked(run, call))
    if call.name in printed.PRINTS:
        return DONE
    return Outcome("", Maybe(f"depends on what {call.name or 'a command'} returns"), call.name or "command")


def _model_arguments(run: "Evaluator", call: Call) -> Word | None:
    """What Miles's `model_args_utils.py NAME` prints: the model's arguments, of a file of its repository."""
    texts = [word.text or "" for word in call.words]
    if not call.name.startswith("python") or len(texts) != 2 or run.script is None or run.root is None:
        return None
    if texts[0].rpartition("/")[2] != "model_args_utils.py":
        return None
    from headway.foreign.python.launchers import printed

    found = printed(texts[1], run.script, run.root)
    return known(found, call.at) if found else None


def _asked(run: "Evaluator", call: Call) -> Word:
    """What a command prints that only the machine knows; a filter of such words knows no more."""
    if run.piped is not None and run.piped.holes:
        return unknown(run.piped.why, run.piped.holes[0].name)
    shown = " ".join((call.name, *(word.shown for word in call.words)))[:80]
    return unknown(f"asks the machine: {shown}", call.name or "command")


def inner_script(call: Call) -> Word | None:
    """The script that a command carries as a word: `bash -c "..."`, `srun ... bash -lc "..."`, `ssh host "..."`."""
    if call.name in TALKERS:
        return None
    words: Sequence[Item] = (known(call.name), *call.arguments)
    for index in range(len(words) - 2):
        item, option, text = words[index : index + 3]
        if _base(item) in SHELLS and isinstance(option, Word) and re.fullmatch(r"-[a-z]*c", option.text or ""):
            return text if isinstance(text, Word) else None
        if _base(item) in SHELLS and isinstance(option, Word) and re.fullmatch(r"-[a-z]+", option.text or ""):
            after = words[index + 3] if index + 3 < len(words) else None
            if isinstance(text, Word) and text.text == "-c" and isinstance(after, Word):
                return after
    last = words[-1]
    if not isinstance(last, Word) or not any(isinstance(part, str) and " " in part.strip() for part in last.parts):
        return None
    before = words[-2] if len(words) > 1 else None
    submitted = call.name == "ray" and isinstance(before, Word) and before.text == "--"
    return last if call.name in REMOTE or submitted else None


CUT_OFF = re.compile(r"--[A-Za-z]|\+{0,2}[a-z_]+\.[\w.]+=")
"""A flag, or a setting of Hydra's, where a program should stand."""
SCRIPT = re.compile(r".*\.(sh|bash|zsh|ksh|slurm|sbatch)", re.DOTALL)
STARTERS = frozenset({
    "sbatch", "srun", "qsub", "bsub", "env", "sudo", "nohup", "setsid", "timeout", "stdbuf", "numactl", "chronic",
})  # fmt: skip
"""Programs that run a script which is named among their words."""
NO_SHELLS = TALKERS | {"chmod", "cp", "mv", "rm", "ls", "pkill", "kill", "which", "apt-get", "apt", "ln", "vim"}


class Inner(Struct, frozen=True):
    """A script that a command runs by the name of its file, its arguments, and variables set before it.

    `folder` is where it starts, if the command says so (`ray job submit --working-dir`).
    """

    file: Word
    arguments: tuple[Item, ...]
    environment: tuple[tuple[str, Word], ...] = ()
    folder: Word | None = None


def inner_file(words: Sequence[Item]) -> Inner | None:
    """The script that a command runs: `./run.sh 4`, `bash -x run.sh 4`, `env TP=4 srun bash run.sh`, `sbatch run.sh`.

    >>> inner_file([known(word) for word in "srun -n 2 bash -eo pipefail run.sh 4".split()]).file.text
    'run.sh'
    """
    first = words[0]
    if not isinstance(first, Word) or _base(first) in NO_SHELLS:
        return None
    if _is_script(first):
        return Inner(first, tuple(words[1:]))
    environment: list[tuple[str, Word]] = []
    for index, item in enumerate(words):
        text = item.text if isinstance(item, Word) else None
        name, equals, value = (text or "").partition("=")
        if equals and name.isidentifier():
            environment.append((name, known(value)))
        if _base(item).endswith(".py"):
            return None
        if _base(item) in SHELLS:
            place = _past_options(words, index + 1)
            file = words[place] if place < len(words) else None
            found = isinstance(file, Word) and (len(file.parts) > 1 or file.text != "")
            if not found or not isinstance(file, Word):
                return None
            return Inner(file, tuple(words[place + 1 :]), tuple(environment), working_dir(words[:index]))
        if index and _base(first) in STARTERS and isinstance(item, Word) and _is_script(item):
            return Inner(item, tuple(words[index + 1 :]), tuple(environment))
    return None


def working_dir(words: Sequence[Item]) -> Word | None:
    """The folder that a submitter takes along and starts the job in; None where it names none.

    >>> working_dir([known(word) for word in "ray job submit --working-dir jobs --".split()]).text
    'jobs'
    """
    for index, item in enumerate(words):
        first = item.parts[0] if isinstance(item, Word) and item.parts else None
        after = words[index + 1] if index + 1 < len(words) else None
        if first in ("--working-dir", "--working_dir") and isinstance(after, Word):
            return after
        if isinstance(item, Word) and isinstance(first, str) and first.startswith("--working-dir="):
            return join((first.partition("=")[2], *item.parts[1:]), item.at)
        given = item.text if isinstance(item, Word) else None
        if given is not None and (match := re.search(r'"working_dir"\s*:\s*"([^"$]+)"', given)):
            return known(match[1])
    return None


def _is_script(word: Word) -> bool:
    last = word.parts[-1] if word.parts else ""
    return isinstance(last, str) and not last.startswith("-") and SCRIPT.fullmatch(last) is not None


def _past_options(words: Sequence[Item], place: int) -> int:
    """The place after a shell's options; beyond the words where a script stands in its own word (`-c`, `-s`)."""
    while place < len(words):
        item = words[place]
        text = item.text if isinstance(item, Word) else None
        if text is None or text[:1] not in ("-", "+"):
            return place
        if re.fullmatch(r"-[a-zA-Z]*[cs]", text):
            break
        place += 2 if re.fullmatch(r"[-+][a-zA-Z]*[oO]|--(rc|init-)file", text) else 1
    return len(words)


def _base(item: Item) -> str:
    return (item.text or "").rpartition("/")[2] if isinstance(item, Word) else ""


def _reads_script(call: Call) -> bool:
    """Whether a command runs what is piped into it: `bash <<EOF`, `ssh host bash <<EOF`, `sbatch <<EOF`."""
    if call.name in SHELLS or call.name == "sbatch":
        return all((word.text or "").startswith("-") for word in call.words)
    return call.name in REMOTE and (not call.words or _base(call.words[-1]) in SHELLS or len(call.words) == 1)
