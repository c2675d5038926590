"""Flags whose value is not there."""

from collections.abc import Iterator

from headway.foreign import slime
from headway.foreign.lint.rule import HYDRA, Given, Rule, Sighting, Subject

SECRET = ("KEY", "TOKEN", "PASSWORD", "SECRET")
MORE = (
    "eval-prompt-data",
    "input-key",
    "label-key",
    "rm-type",
    "advantage-estimator",
    "optimizer",
    "lr",
    "wandb-key",
)


def find(subject: Subject) -> Iterator[Sighting]:
    """A flag that takes a value and has none, and one whose value is a variable that nothing sets."""
    if subject.system in HYDRA:
        return
    valued = _valued(subject.system)
    for given in subject.given:
        if not given.values and given.name in valued:
            yield Sighting(f"--{given.name} has no value", given.at, instead=f"give --{given.name} its value")
        elif given.name in valued and len(given.values) == 1 and given.values[0].never_set:
            yield from _unset(subject, given)


def _unset(subject: Subject, given: Given) -> Iterator[Sighting]:
    value = given.values[0]
    if any(word in value.shown.upper() for word in SECRET):
        return
    if _quoted(subject, given):
        yield Sighting(
            f"--{given.name} {value.shown} is an empty text unless whoever starts the script sets it", value.at,
            "warning", "the parser takes the empty text as the value", _set(value.shown),
        )  # fmt: skip
        return
    yield Sighting(
        f"--{given.name} {value.shown} has no value unless whoever starts the script sets it: without quotes an "
        "empty variable is no word at all",
        value.at, "warning", instead=_set(value.shown),
    )  # fmt: skip


def _set(shown: str) -> str:
    return f"set {shown.replace('${', '').replace('}', '')} in the script, or a default: ${{NAME:-value}}"


def _quoted(subject: Subject, given: Given) -> bool:
    """Whether the value's text stands in double quotes in the script."""
    at = given.values[0].at
    if at is None or at.start < 0 or at.file != subject.script.path:
        return False
    return subject.script.text.encode(errors="replace")[at.start : at.end].startswith(b'"')


def _valued(system: str) -> frozenset[str]:
    """Flags of a system that take a value, as far as they are known."""
    if system == "openrlhf":
        from headway.foreign import openrlhf

        return frozenset(name for row in openrlhf.VALUED for name in row[1])
    if system == "trl":
        return frozenset()
    rules = (rule for rule in slime.RULES if rule.kind in ("int", "float", "text"))
    return frozenset({*slime.NEEDS_VALUE, *MORE, *(name for rule in rules for name in rule.flags)})


RULE = Rule(
    name="empty-value",
    severity="error",
    title="a flag without its value",
    sees="a flag that takes a value is followed by the next flag, or by a variable that nothing in the script sets.",
    why="the parser ends with `expected one argument`; where it takes any number of values it takes none, and a "
    "launcher that is less strict takes the next flag as the value",
    example="python3 train.py --rollout-batch-size 8 --prompt-data --input-key prompt",
    instead="give the flag its value",
    near_miss="python3 train.py --rollout-batch-size 8 --prompt-data ${DATA:-/data/math.jsonl} --input-key prompt "
    "--colocate",
    not_this="an on/off flag takes no value, and a variable with a default always has one.",
    find=find,
)
