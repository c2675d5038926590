"""Variables that a launch uses and nothing sets."""

import re
from collections.abc import Iterator, Sequence

from headway.foreign.jobs import setter
from headway.foreign.lint import empty_value, save_path
from headway.foreign.lint.rule import Rule, Sighting, Subject
from headway.foreign.shell.values import Choice, Gap, Hole, Item, Origin

FROM_A_CLUSTER = re.compile(
    r"WANDB|KEY|TOKEN|SECRET|PASSWORD|MASTER_|RANK|WORLD_SIZE|NODE|HOST|PYTHONPATH|LD_LIBRARY|PROXY|proxy"
    r"|CONDA|CUDA|NCCL|RAY_|HF_|^\d+$|^[@*#]$"
)
"""Names that a cluster, a login or the command line often sets; those that a scheduler always sets are
`jobs.setter`'s."""
STRICT = re.compile(r"^\s*set\s+(?:-[a-zA-Z]*u|-o\s+nounset|-[a-zA-Z]*\s+-[a-zA-Z]*u)", re.MULTILINE)


def find(subject: Subject) -> Iterator[Sighting]:
    """Each name once, at its first use in the training command or in what launches it."""
    told = {hole.name for given in subject.given if given.name in save_path.FLAGS for value in given.values
            for hole in value.holes}  # fmt: skip
    told |= {word.removeprefix("${").removesuffix("}") for word in _empty(subject)}
    strict = STRICT.search(subject.script.text) is not None
    for name, (kind, at, is_array) in _unset(subject).items():
        if name in told or setter(name):
            continue
        used = f"${{{name}[@]}}" if is_array else f"${name}"
        unread = f", and may be set in a file that was not read ({'; '.join(subject.script.unread[:1])})"
        at = at if is_array else subject.source(name, at)
        unread = unread if kind == "unread" else ""
        text = f"{used} is {'an argument of' if name.isdigit() else 'set nowhere in'} the script{unread}"
        outside = kind == "unread" or FROM_A_CLUSTER.search(name) is not None
        if strict and not outside:
            yield Sighting(f"{text}, and `set -u` ends the script there", at, "error")
        else:
            yield Sighting(text, at, "note" if outside else None)


def _empty(subject: Subject) -> Iterator[str]:
    """Variables of which another rule tells that a flag has no value without them."""
    for given in subject.given:
        if len(given.values) == 1 and given.values[0].never_set and given.name in empty_value._valued(subject.system):
            yield from (f"${{{hole.name}}}" for hole in given.values[0].holes)


def _unset(subject: Subject) -> dict[str, tuple[str, Origin | None, bool]]:
    found: dict[str, tuple[str, Origin | None, bool]] = {}
    for command in subject.commands:
        if command.at == subject.found.at or command.program == "ray":
            words: tuple[Item, ...] = (*command.argv, *(value for _, value in command.environment))
            for hole, at, is_array in _holes(words):
                if hole.kind in ("unset", "unread"):
                    found.setdefault(hole.name, (hole.kind, at or command.at, is_array))
    return found


def _holes(items: Sequence[Item]) -> Iterator[tuple[Hole | Gap, Origin | None, bool]]:
    for item in items:
        if isinstance(item, Choice):
            for option in item.options:
                yield from _holes(option)
        elif isinstance(item, Gap):
            yield item, None, True
        else:
            yield from ((hole, item.at, False) for hole in item.holes)


RULE = Rule(
    name="undefined-variable",
    severity="warning",
    title="a variable that nothing sets",
    sees="the training command, or a `ray` command before it, uses a variable or an array that nothing in the script "
    "sets and that has no default.",
    why="bash puts nothing in its place: a path ends early, a list of flags is missing, and with `set -u` the script "
    "ends there; what the plan says of it is unknown",
    example="python3 train.py --rollout-batch-size 8 --custom-rm-path $REWARD_DIR/reward.py",
    instead="set it in the script, or give it a default (${NAME:-value})",
    near_miss="REWARD_DIR=${REWARD_DIR:-/rm}\n"
    "python3 train.py --rollout-batch-size 8 --custom-rm-path $REWARD_DIR/reward.py",
    not_this="keys and tokens come from outside, and are noted only; what starts the job sets its own variables "
    "(SLURM_JOB_ID, RANK, WORLD_SIZE, MASTER_ADDR, PET_NNODES, RAY_ADDRESS), and nothing is said of them.",
    find=find,
)
