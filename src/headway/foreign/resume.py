"""How another system's run goes on from its last complete checkpoint: where that is, and the flags that load it.

slime, Miles and Megatron-LM: `megatron/training/checkpointing.py` writes latest_checkpointed_iteration.txt into the
folder of `--save` when a checkpoint is whole, and reads it from that of `--load`; `--ckpt-step` names another one.
verl: `verl/trainer/ppo/ray_trainer.py` does the same in `trainer.default_local_dir`, and resumes by itself unless
`trainer.resume_mode` says otherwise. Nothing is run here.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from headway.errors import InputError
from headway.foreign.found import Found
from headway.foreign.patch import Edit, patch
from headway.foreign.readers import settings_of
from headway.foreign.shell import read_text
from headway.foreign.shell.files import root_of
from headway.foreign.shell.parse import Unit, parse

TRACKER = "latest_checkpointed_iteration.txt"
MEGATRON = ("slime", "miles", "megatron")
OWN_NAME = "HEADWAY_SCRIPT"
"""The variable that holds a script's own path in its copy, which lies elsewhere."""
_ITERATION = re.compile(r"(?:iter_|global_step_)(\d+)")
_SELF = re.compile(r"\$(?:\{(?=[^}]))?(BASH_SOURCE\[0\]|BASH_SOURCE|0)(?=[}%#:/]|$)")


class Checkpoint(Struct, frozen=True):
    """A complete checkpoint: the folder that the run saves to, its number, and its own folder.

    `latest`: it is the one that the system would take by itself.
    """

    save: str
    step: int
    place: str
    latest: bool = True


def last_checkpoint(found: Found, cwd: Path) -> Checkpoint:
    """The last complete checkpoint of a run. InputError with the reason where nothing would be resumed."""
    folder = _save_folder(found, cwd)
    wanted = _tracked(folder)
    steps = {int(match[1]): path for path in folder.iterdir() if (match := _ITERATION.fullmatch(path.name))}
    for step in sorted((each for each in steps if wanted is None or each <= wanted), reverse=True):
        if _complete(steps[step]):
            return Checkpoint(str(folder), step, str(steps[step]), latest=step == wanted)
    told = f"{TRACKER} names {wanted}, but " if wanted is not None else ""
    raise InputError(f"{folder}: {told}no checkpoint in it is complete, so nothing would be resumed")


def edits_of_resume(found: Found, checkpoint: Checkpoint) -> tuple[Edit, ...]:
    """The flags that make the run go on from there; none where it does so by itself."""
    if found.system == "verl":
        mode = _last(found, "trainer.resume_mode")
        return () if mode in (None, "auto") else (Edit("trainer.resume_mode", "auto"),)
    edits = []
    load = _last(found, "load")
    if load is None or load.rstrip("/") != checkpoint.save.rstrip("/"):
        edits.append(Edit("load", checkpoint.save))
    if not checkpoint.latest:
        edits.append(Edit("ckpt-step", str(checkpoint.step)))
    return tuple(edits)


def resumed_script(path: Path, edits: Sequence[Edit]) -> str:
    """The text of a copy of a script, to lie elsewhere, that has the edits and still finds what lies beside the
    original. InputError where the script does not allow it."""
    whole = path.resolve()
    text = patch(str(path), path.read_text(), edits, path=whole, root=root_of(whole)).text
    if re.search(r"BASH_SOURCE\[[^0]|#BASH_SOURCE|BASH_SOURCE\[0\]\[", text):
        raise InputError(f"{path}: it asks for its callers (BASH_SOURCE), which a copy elsewhere would not have")
    copy = _at_home(text, whole)
    _check_same(text, copy, whole)
    return copy


def resumed_command(words: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    """A typed command with the edits behind it. InputError where they would not reach the trainer.

    >>> resumed_command("python3 train.py --rollout-batch-size 8 --save /ckpt".split(), [Edit("load", "/ckpt")])[-2:]
    ['--load', '/ckpt']
    """
    added = [word for edit in edits for word in _words(edit)]
    made = [*words, *added]
    flags = settings_of(read_text(shlex.join(made), "command line")).flags
    for edit in edits:
        if (flags.get(edit.name) or (None,))[-1] != edit.value:
            raise InputError(
                f"--{edit.name} {edit.value} cannot be added at the end of the command; start the trainer in a script"
            )
    return made


def _words(edit: Edit) -> list[str]:
    if "." in edit.name:
        return [f"{edit.name}={edit.value}"]
    return [f"--{edit.name}", *([] if edit.value is None else [edit.value])]


def _last(found: Found, name: str) -> str | None:
    """A flag's value as last given."""
    return (found.flags.get(name) or (None,))[-1]


def saves_to(found: Found) -> tuple[str, str]:
    """The setting that says where a run saves its checkpoints, and what it says. InputError where nothing would be
    resumed: no such setting, or a system that headway cannot tell to resume."""
    if found.system in MEGATRON:
        name, said = "--save", _last(found, "save")
    elif found.system == "verl":
        name, said = "trainer.default_local_dir", _last(found, "trainer.default_local_dir")
        if said is None:
            project, run = (_last(found, f"trainer.{key}_name") for key in ("project", "experiment"))
            said = f"checkpoints/{project}/{run}" if project and run else None
    else:
        raise InputError(
            f"headway does not know how a run of {found.system} is told to resume, so it is not restarted"
        )
    why = next((note for note in found.notes if note.startswith(f"{name} ") and ": " in note), "")
    if said is None and why:
        raise InputError(
            f"{why}; where the run saves cannot be told, so nothing would be resumed; write it out there"
        )
    if said is None:
        raise InputError(f"the run has no {name}, so it keeps no checkpoint and nothing would be resumed")
    if "$" in said:
        raise InputError(f"{name} {said}: no shell puts a value there, so nothing would be resumed; write it out")
    return name, said


def _save_folder(found: Found, cwd: Path) -> Path:
    name, said = saves_to(found)
    folder = cwd / said
    if not folder.is_dir():
        raise InputError(f"{name} {said}: no such folder here, so nothing would be resumed")
    return folder


def _tracked(folder: Path) -> int | None:
    """The checkpoint that the tracker names; None where it names none, such as converted weights ("release")."""
    try:
        text = (folder / TRACKER).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _complete(folder: Path) -> bool:
    """Whether a checkpoint's folder is whole as far as its files show: some hold something, and where the shards of
    torch.distributed.checkpoint lie there, their `.metadata` does too, which is written last."""
    files = list(_files(folder))
    shards = {file.parent for file in files if file.suffix == ".distcp"}
    return any(file.stat().st_size for file in files) and all((each / ".metadata").is_file() for each in shards)


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file())


def _at_home(text: str, path: Path) -> str:
    """The text with the script's own path in place of what bash would give for the copy."""
    unit = parse(text, str(path))
    made = unit.data
    for start, end in sorted(_own_names(unit), reverse=True):
        made = made[:start] + OWN_NAME.encode() + made[end:]
    if made == unit.data:
        return text
    first, rest = made.split(b"\n", 1) if made.startswith(b"#!") else (b"", made)
    lines = [*([first.decode()] if first else []), f"{OWN_NAME}={shlex.quote(str(path))}", rest.decode()]
    return "\n".join(lines)


def _own_names(unit: Unit) -> Iterator[tuple[int, int]]:
    """Where the script asks bash for its own path: the names in `$0`, `${0%/*}`, `${BASH_SOURCE[0]}`."""
    waiting = [unit.tree.root_node]
    while waiting:
        node = waiting.pop()
        waiting += node.children
        if node.type in ("simple_expansion", "expansion"):
            match = _SELF.match(unit.text(node))
            if match is not None:
                yield node.start_byte + match.start(1), node.start_byte + match.end(1)


def _check_same(text: str, copy: str, path: Path) -> None:
    """InputError where the copy would run anything else than the text would in its own place."""
    argv = []
    for each in (text, copy):
        read = read_text(each, str(path), path, root_of(path))
        argv.append(
            [[getattr(item, "shown", None) or str(item) for item in command.argv] for command in read.commands]
        )
    if argv[0] != argv[1]:
        raise InputError(f"{path}: a copy in another folder would not do the same; add --load to it by hand")
