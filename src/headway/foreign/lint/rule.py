"""What a lint rule is, what it is given, and what it says. One file beside this one is one rule."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Literal

from msgspec import Struct

from headway.facts.workload import Workload
from headway.foreign import slime
from headway.foreign.command import Line, split
from headway.foreign.found import Found
from headway.foreign.rules import may_hold
from headway.foreign.shell import Command, Script
from headway.foreign.shell.values import Origin, Placed, Value, Word, worlds

Severity = Literal["error", "warning", "note"]
"""An error ends the run or keeps it from starting, a warning costs memory or work, a note is worth knowing."""

SLIME = ("slime", "miles")
HYDRA = ("verl",)
MOST_WORLDS = 16


class LintNote(Struct, frozen=True):
    """One thing that a rule found in a launch. `line` is 0 where no place is known.

    >>> LintNote("reference-at-zero", "warning", "run.sh", 12, "a reference", "it costs memory", "leave it out").line
    12
    """

    rule: str
    severity: Severity
    file: str
    line: int
    text: str
    why: str
    instead: str


class Sighting(Struct, frozen=True):
    """What a rule saw in one place. Where `why` or `instead` are empty, the rule's own hold.

    >>> Sighting("--save is given twice").severity is None
    True
    """

    text: str
    at: Origin | None = None
    severity: Severity | None = None
    why: str = ""
    instead: str = ""


class Given(Placed, frozen=True):
    """One setting as the training command gives it once: a flag with its values, or an override of Hydra's.

    >>> from headway.foreign.shell.values import known
    >>> Given("tensor-model-parallel-size", (known("4"),)).text
    '4'
    """

    name: str
    values: tuple[Word, ...] = ()
    at: Origin | None = None

    @property
    def text(self) -> str | None:
        """The values with blanks between them; None where one is not known."""
        texts = [value.text for value in self.values]
        return None if any(text is None for text in texts) else " ".join(text or "" for text in texts)

    @property
    def written(self) -> Origin | None:
        """Where its value is written, or the flag itself where it has none."""
        return next((value.at for value in self.values if value.at is not None), self.at)


class Subject(Struct, frozen=True, dict=True):
    """A launch to look at: what was found in it, its commands, and what is planned of it where it can be.

    `at_step` is how many steps were done when a run ended. `refusals` are the planner's words on an engine that does
    not start.
    """

    found: Found
    script: Script
    workload: Workload | None = None
    at_step: int | None = None
    refusals: tuple[str, ...] = ()

    @property
    def system(self) -> str:
        """Who is launched."""
        return self.found.system

    @property
    def commands(self) -> tuple[Command, ...]:
        """All commands of the script, in order."""
        return self.script.commands

    @property
    def variables(self) -> Mapping[str, Value]:
        """What the script's variables hold at its end."""
        return self.script.variables

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """The flags of the training command, in every world that the script's open conditions allow."""
        switches = slime.SWITCHES
        if self.system == "openrlhf":
            from headway.foreign import openrlhf  # a reader is loaded only where the launch is its system's

            switches = openrlhf.SWITCHES
        found = []
        for world in worlds(self.found.argv):
            found.append(split(world, switches))
            if len(found) >= MOST_WORLDS:
                break
        return tuple(found)

    def last(self, *names: str) -> Given | None:
        """The setting of one of these names that is given last, in any world."""
        return next((each for each in reversed(self.given) if each.name in names), None)

    @cached_property
    def given(self) -> tuple[Given, ...]:
        """Every setting of the training command in its first world, in order of their names' first use."""
        if self.system in HYDRA:
            return tuple(self._overrides())
        flags = self.lines[0].flags.values() if self.lines else ()
        return tuple(Given(flag.name, flag.values, flag.at) for each in flags for flag in each)

    def _overrides(self) -> Iterator[Given]:
        from headway.foreign import hydra

        for item in self.found.argv:
            read = hydra.override(item) if isinstance(item, Word) else None
            if read is None or not isinstance(item, Word):
                continue
            value = None if read.value is None else str(read.value)
            yield Given(read.key, (read.word or Word(() if value is None else (value,), item.at),), item.at)

    def hidden(self, key: str) -> bool:
        """Whether words that are not known may hold a flag for a setting."""
        return any(may_hold(gap.name, key) for line in self.lines for gap in line.gaps)

    def source(self, name: str, at: Origin | None) -> Origin | None:
        """Where a variable is assigned whose text is `name` or has a hole of that name in it; else `at`."""
        for value in self.variables.values():
            named = isinstance(value, Word) and (
                value.shown == name or any(hole.name == name for hole in value.holes)
            )
            if named and isinstance(value, Word) and value.at is not None:
                return value.at
        return at

    def number(self, key: str) -> int | float | None:
        """A number among the settings; None where it is unknown or none."""
        value = self.found.value(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def count(self, key: str) -> int | None:
        """A whole number above 0 among the settings; None where it is unknown or none."""
        value = self.number(key)
        return value if isinstance(value, int) and value > 0 else None

    def is_given(self, key: str) -> bool:
        """Whether the script itself says a setting."""
        return self.found.settings.get(key) is not None and key not in self.found.unknown

    def place(self, *keys: str) -> Origin | None:
        """Where the first of these settings that is written stands; the training command where none is."""
        return next((self.found.places[key] for key in keys if key in self.found.places), self.found.at)

    def flag(self, key: str) -> str:
        """How the launch's system writes a setting: `--max-tokens-per-gpu`."""
        name = _spellings(self.system).get(key, key)
        return name.removeprefix("--") if "script_kind" in self.found.flags else name


def _spellings(system: str) -> Mapping[str, str]:
    if system in HYDRA:
        from headway.foreign import verl

        rows: tuple[verl.Row, ...] = verl.SHARDED + verl.MEGATRON + verl.COMMON
        return {row[0]: row[1][0] for row in rows}
    if system == "openrlhf":
        return {key: f"--{names[0]}" for key, names in _names_of_openrlhf()}
    if system in ("trl", "hf"):
        return OF_TRL
    if system == "unsloth":
        return {**OF_TRL, "engine_mem_fraction": "--gpu_memory_utilization"}
    return {rule.key: f"--{rule.flags[0]}" for rule in slime.RULES}


def _names_of_openrlhf() -> tuple[tuple[str, tuple[str, ...]], ...]:
    from headway.foreign import openrlhf

    return (*((row[0], row[1]) for row in openrlhf.VALUED), *openrlhf.ON_OFF)


OF_TRL = {
    "micro_batch": "--per_device_train_batch_size", "grad_accum": "--gradient_accumulation_steps",
    "samples_per_prompt": "--num_generations", "save_interval": "--save_steps", "eval_interval": "--eval_steps",
    "max_response_len": "--max_completion_length", "engine_mem_fraction": "--vllm_gpu_memory_utilization",
    "kl_coef": "--beta",
}  # fmt: skip


class Rule(Struct, frozen=True):
    """One rule, and its page: what it sees, why that matters, an example, what to do instead, and what looks alike.

    `example` is a script in which the rule sees something, `near_miss` one in which it does not, with `not_this` in
    words.
    """

    name: str
    severity: Severity
    title: str
    sees: str
    why: str
    example: str
    instead: str
    near_miss: str
    not_this: str
    find: Callable[[Subject], Iterator[Sighting]]

    def notes(self, subject: Subject) -> Iterator[LintNote]:
        """What the rule says to a launch."""
        for seen in self.find(subject):
            at = seen.at or subject.found.at
            yield LintNote(
                self.name, seen.severity or self.severity, at.file if at else subject.script.path,
                at.line if at else 0, seen.text, seen.why or self.why, seen.instead or self.instead,
            )  # fmt: skip
