"""Three public cases planned after the fact: pages of docs/cases, written from the product's own output.

    python benchmarks/cases.py gb10-4b > docs/cases/gb10-4b.md
    python benchmarks/cases.py pick-a-size > docs/cases/pick-a-size.md
    python benchmarks/cases.py step-75 > docs/cases/step-75.md

Source of what was measured: the manual "Miles 101", part 2, sections 2.1 and 2.3, edition 2026.10: one GB10, Miles's
FSDP trainer with a colocated SGLang engine, answers cut at 256 tokens, 4 steps, Ray's default threshold. The lengths
of prompts, the numbers of prompts and answers, the cap and the reference are not in it and are assumed. The third
case is github.com/THUDM/slime issue 1740, whose launch script is in tests/data/scripts.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console, Group, RenderableType

from headway.cli.doctor import diagnosed
from headway.cli.inputs import Case, read_case
from headway.diagnose.finding import Diagnosis
from headway.facts import machines, shapes
from headway.facts.machine import Machine
from headway.facts.shapes import ModelShape
from headway.facts.workload import Workload
from headway.foreign.presets import by_name, workload
from headway.plan.ledger import Ledger, Line, Peak, Phase
from headway.plan.plan import plan
from headway.plan.planned import Planned, examine
from headway.plan.size import OTHERS, OWN, largest, size, trainable
from headway.plan.verdict import Kind, overall, verdict
from headway.reports.doctor import doctor_report
from headway.reports.launch import lint_report
from headway.reports.plan import plan_report
from headway.units import GIB

ROOT = Path(__file__).parents[1]
POOL = "node[0].unified"
TRAINER = "miles-fsdp"
SHORT = ("rollout.max_answer=256", "steps=4")
INFERRED = "inferred: not measured in the seed"


@dataclass(frozen=True)
class Kill:
    """What Ray's message said when it stopped the 4B run, in GiB, which the message writes as GB.

    >>> KILL.rest, KILL.free
    (75.03, 5.83)
    """

    total: float
    used: float
    trainer: float
    engine: tuple[float, float]

    @property
    def rest(self) -> float:
        """Used memory that belongs to no listed process."""
        return round(self.used - self.trainer - sum(self.engine), 2)

    @property
    def free(self) -> float:
        """Memory that nobody used."""
        return round(self.total - self.used, 2)


KILL = Kill(total=121.69, used=115.86, trainer=36.77, engine=(2.73, 1.33))
SECOND_USED, SECOND_TRAINER = 119.18, 36.75
"""The second kill, with --sglang-mem-fraction-static 0.2."""


def gb10() -> Machine:
    """The machine of both cases."""
    return machines.by_name("gb10")


def run(model: str | ModelShape, *settings: str) -> Workload:
    """A run of the seeds in Miles's FSDP layout."""
    shape = shapes.by_name(model) if isinstance(model, str) else model
    assert shape is not None
    return workload(shape, TRAINER, (*SHORT, *settings))


def kind(run: Workload) -> Kind:
    """Whether a run fits a GB10."""
    return overall(verdict(plan(run, gb10()), gb10())).kind


def deciding(run: Workload) -> Peak:
    """The phase that decides about a run."""
    (pool,) = verdict(plan(run, gb10()), gb10())
    return pool.peak


def gib(size: int) -> str:
    """A size as text."""
    return f"{size / GIB:.2f} GiB"


# -- the kill beside the ledger -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A part of the memory at the kill, the lines of the step phase that belong there, and what they leave."""

    name: str
    measured: float
    lines: tuple[Line, ...]
    remark: str

    @property
    def planned(self) -> float:
        """GiB of its lines."""
        return sum(line.bytes for line in self.lines) / GIB

    @property
    def unexplained(self) -> float:
        """GiB that no line explains; negative where the lines hold more than was measured."""
        return self.measured - self.planned


def parts(ledger: Ledger) -> tuple[Part, ...]:
    """The step phase's lines by the parts of Ray's message."""
    lines = ledger.select(POOL, Phase.STEP)
    own = tuple(line for line in lines if line.quantity == "host" and line.role in ("trainer", "reference"))
    engine = tuple(line for line in lines if line.item in ("engine process", "rollout process"))
    rest = tuple(line for line in lines if line not in own and line not in engine)
    return (
        Part(
            "trainer process", KILL.trainer, own,
            "pinned copies may not count as resident, file pages of the checkpoint may; neither was measured",
        ),
        Part(
            "engine processes", sum(KILL.engine), engine,
            "no check: the constants of such processes were read from this very list",
        ),
        Part(
            "in no listed process", KILL.rest, rest,
            "device memory, the system, and processes too small for the list; the lines are those of the phase at "
            "its highest, and the run was stopped on the way there",
        ),
    )  # fmt: skip


def gb10_4b() -> Iterator[str]:
    """The page on the 4B run."""
    first, second = run("qwen3-4B"), run("qwen3-4B", "engine.memory_fraction=0.2")
    ledger = plan(first, gb10())
    yield "# Case: Qwen3-4B on one GB10, stopped by Ray in its first step\n"
    yield (
        'What was measured is from the manual "Miles 101" (2.1 and 2.3, edition 2026.10). Everything else on this '
        "page is planned after the fact from the flags, by `python benchmarks/cases.py gb10-4b`. Sizes are GiB; the "
        "message of the kill writes GiB as GB.\n"
    )
    yield "## The plan\n"
    yield from _shown(f"headway plan qwen3-4B --trainer {TRAINER} --machine gb10 " + _flags(SHORT), first)
    yield "## Train and step against the limits\n"
    yield from _against_limits(ledger)
    yield "\n## The kill laid beside it\n"
    yield from _kill(ledger)
    yield "## The engine's fraction from 0.4 to 0.2\n"
    before, after = deciding(first), deciding(second)
    rollouts = [plan(each, gb10()).peak_of(POOL, Phase.ROLLOUT).bytes for each in (first, second)]
    yield (
        f"The run ends in the phase `{before.phase}` of step {before.step}. With 0.2 that phase holds "
        f"{gib(after.bytes)} instead of {gib(before.bytes)}: the engine sleeps in it and has given back weights and "
        f"KV pool, so its fraction is in no line of it. Measured: both runs were stopped, at {KILL.used} and "
        f"{SECOND_USED} GiB, with {KILL.trainer} and {SECOND_TRAINER} GiB in the trainer process. Only the rollout "
        f"of later steps becomes smaller, {gib(rollouts[0])} to {gib(rollouts[1])}; the run does not get that far."
    )


def _against_limits(ledger: Ledger) -> Iterator[str]:
    ray, memory = sorted(gb10().pools[0].limits, key=lambda limit: limit.bytes)
    limits = f"of {ray.name} ({gib(ray.bytes)}) | of all ({gib(memory.bytes)})"
    yield f"| phase | from step | expected | bound | {limits} |"
    yield "|---|---|---|---|---|---|"
    for phase in (Phase.TRAIN, Phase.STEP):
        peak = ledger.peak_of(POOL, phase)
        yield (
            f"| {phase} | {peak.step} | {gib(peak.bytes)} | {gib(peak.upper)} | {peak.bytes / ray.bytes:.0%} | "
            f"{peak.bytes / memory.bytes:.0%} |"
        )


def _kill(ledger: Ledger) -> Iterator[str]:
    yield (
        f"At the kill {KILL.used} of {KILL.total} GiB were in use and {KILL.free} free. Only the first column of "
        f"figures was measured; all others are {INFERRED}.\n"
    )
    yield "| part | measured, GiB | lines of the step phase, GiB | planned | unexplained | remark |"
    yield "|---|---|---|---|---|---|"
    for part in parts(ledger):
        largest_first = sorted(part.lines, key=lambda line: -line.bytes)
        names = ", ".join(f"{line.item} {line.bytes / GIB:.2f}" for line in largest_first)
        yield (
            f"| {part.name} | {part.measured:.2f} | {names} | {part.planned:.2f} | {part.unexplained:+.2f} | "
            f"{part.remark} |"
        )
    peak = ledger.peak_of(POOL, Phase.STEP)
    yield (
        f"\nThe lines of the step phase sum to {gib(peak.bytes)}, {peak.bytes / GIB - KILL.used:.2f} GiB more than "
        "the node held when Ray looked: the moments and the temporaries of the optimizer were still being made.\n"
    )


# -- the size that fits -------------------------------------------------------------------------------------


def estimate(shape: ModelShape) -> float:
    """The seed's first guess in decimal GB: 16 bytes a parameter."""
    return 16 * shape.parameters() / 1e9


def limit_of_estimate() -> tuple[float, float]:
    """Decimal GB of the 16-byte estimate at which the run stops to fit: by the bound, and by what is expected.

    Models between 1.7B and 4B do not exist in this family, so the 4B shape with fewer layers stands for them.
    """
    shape = shapes.by_name("qwen3-4B")
    assert shape is not None
    found: dict[Kind, float] = {}
    for layers in range(shape.layers, 0, -1):
        smaller = replace(shape, name=f"qwen3-4B with {layers} layers", layers=layers)
        found[kind(run(smaller))] = max(found.get(kind(run(smaller)), 0.0), estimate(smaller))
    return found["fits"], max(found["fits"], found.get("tight", 0.0))


def pick_a_size() -> Iterator[str]:
    """The page on the size that fits."""
    yield "# Case: which model trains on one GB10\n"
    yield (
        'What was measured is from the manual "Miles 101" (2.1, edition 2026.10): Qwen3-1.7B fit for 4 steps with '
        "answers of 256 tokens, Qwen3-4B did not. The rest is planned, by `python benchmarks/cases.py pick-a-size`.\n"
    )
    yield "## In Miles's FSDP layout\n"
    yield "| model | answers | 16 bytes a parameter, decimal GB | decides | expected | bound | verdict | measured |"
    yield "|---|---|---|---|---|---|---|---|"
    measured = {("qwen3-1.7B", 256): "fit", ("qwen3-4B", 256): "stopped by Ray in step 1"}
    for model in ("qwen3-0.6B", "qwen3-1.7B", "qwen3-4B", "qwen3-8B"):
        for answer in (256, 1024):
            planned = run(model, f"rollout.max_answer={answer}")
            peak = deciding(planned)
            yield (
                f"| {model} | {answer:,} | {estimate(planned.model):.1f} | {peak.phase}, step {peak.step} | "
                f"{gib(peak.bytes)} | {gib(peak.upper)} | {kind(planned)} | "
                f"{measured.get((model, answer), 'not tried')} |"
            )
    low, high = limit_of_estimate()
    long = run("qwen3-1.7B", "rollout.max_answer=1024")
    (pool,) = verdict(plan(long, gb10()), gb10())
    yield (
        "\nThe manual saw the limit between 27 and 64 GB of the 16-byte estimate. The ledger: a run fits surely up "
        f"to {low:.0f} GB of it and is expected to fit up to {high:.0f} GB (the 4B shape with fewer layers, answers "
        "of 256 tokens). Half of the memory, 64 GB, is too high as a first guess for this layout: the reference, the "
        "engine, and host copies that save nothing on one memory come on top.\n"
    )
    yield (
        f"Qwen3-1.7B with answers of 1,024 tokens, which the manual did not try: {pool.kind}; the bound leaves "
        f"{gib(pool.margin)} below {pool.margins[0].limit.name}, what is expected {gib(pool.margins[0].expected)}. "
        "Longer answers cost little here, because a micro-batch is bounded by 9,216 tokens either way.\n"
    )
    yield "## The largest model for each of headway's recipes, and for others\n"
    yield "| recipe | trainer | largest that fits | expected | bound | longest answer | samples at once |"
    yield "|---|---|---|---|---|---|---|"
    yield from _largest()


def _largest() -> Iterator[str]:
    rows = size(gb10(), trainable(), (*OWN, *OTHERS))
    for recipe in (*OWN, *OTHERS):
        row = largest(rows)[recipe.name]
        if row is None:
            yield f"| {recipe.name} | {recipe.trainer_system} | none |  |  |  |  |"
            continue
        at_once = "not planned" if row.in_flight is None else f"{row.in_flight:,}"
        yield (
            f"| {recipe.name} | {recipe.trainer_system} | {row.model} | {gib(row.expected)} | {gib(row.upper)} | "
            f"{row.longest_answer:,} | {at_once} |"
        )


# -- the run that died at step 75 ---------------------------------------------------------------------------

SCRIPT = Path("tests/data/scripts/slime-step-75.sh")
STEP_75_LOG = Path("tests/data/deaths/seeds/step-75.log")
OPTIONS = ("--model", "qwen3-30B-A3B", "--machine", "b200x8", "--set", "host.bytes=1600e9", "--at-step", "75")


def step_75_case() -> Case:
    """The posted script on eight B200 with 1,600 GB of host memory."""
    with chdir(ROOT):  # so that the page shows the same path wherever the repository lies
        return read_case([str(SCRIPT)], None, "b200x8", ["host.bytes=1600e9"], model="qwen3-30B-A3B")


def step_75() -> Iterator[str]:
    """The page on the 30B-A3B run: the plan of its script, and the diagnosis of its last lines."""
    case = step_75_case()
    planned = examine(case.workload, case.machine)
    assert case.launch is not None
    notes = case.launch.lint(case.workload, 75, planned.outcome.refusals)
    yield "# Case: Qwen3-30B-A3B on eight B200, ended at step 75\n"
    yield (
        "A run of slime's `train_async.py` ended at step 75 with the sentence that it may have exceeded its pod's "
        "memory limits (github.com/THUDM/slime issue 1740). This page plans the script as it was posted, by `python "
        "benchmarks/cases.py step-75`, and diagnoses what it printed. The host memory of 1600 GB, decimal, is from "
        "the report.\n"
    )
    yield "## The plan\n"
    command = f"headway plan {SCRIPT} {' '.join(OPTIONS)}"
    shown = Group(plan_report(planned, case.trainer), lint_report(notes, lines=False))
    yield from _console(command, shown)
    yield "## What the plan says about the death\n"
    yield from _about_75(planned)
    yield "\n## The diagnosis\n"
    found = step_75_diagnosis()
    yield "```console"
    yield f"$ headway doctor {STEP_75_LOG} --script {SCRIPT} --machine b200x8 --set host.bytes=1600e9"
    yield doctor_report(found)
    yield "```"


def step_75_diagnosis() -> Diagnosis:
    """What the doctor makes of the lines that the run ended with."""
    with chdir(ROOT):
        return diagnosed([str(STEP_75_LOG)], [], SCRIPT, "b200x8", live=False, changes=["host.bytes=1600e9"])


def _about_75(planned: Planned) -> Iterator[str]:
    ledger, run = planned.ledger, planned.workload
    pools = {each.pool: each for each in planned.outcome.pools}
    trainer, host = pools["node[0].device[0]"], pools["node[0].host"]
    state = sum(
        line.bytes
        for line in ledger.select(trainer.pool, Phase.STEP)
        if line.item in ("weights", "gradient buffer", "optimizer state")
    )
    copies = [line for line in ledger.select(host.pool, Phase.TRAIN) if line.item.endswith(" weights")]
    yield (
        f"- Four devices train and four generate. A training device holds {gib(state)} of state (tensor parallel 4, "
        f"expert parallel 4, one data parallel rank) and {gib(trainer.peak.bytes)} at its worst, in "
        f"`{trainer.peak.phase}`; the device has {gib(trainer.margins[0].limit.bytes)}."
    )
    yield (
        f"- The host holds {', '.join(f'{line.item} {gib(line.bytes)}' for line in copies)} for its four ranks, the "
        f"reference although its coefficient is 0, and {gib(host.peak.bytes)} at its worst, in `{host.peak.phase}`, "
        f"of {gib(host.margins[-1].limit.bytes)} ({host.margins[-1].limit.bytes / 1e9:,.0f} decimal GB)."
    )
    yield (
        f"- Samples may have {run.rollout.max_answer:,} tokens of answer, plus prompt and tool turns that the script "
        f"does not bound. The cap is {run.trainer.cap:,} tokens: the longest sample that surely fits alone has "
        f"{planned.longest_sample:,}."
    )
    yield (
        "- What the host gains from step to step is no setting and is not planned. A plan that fits at step 1 does "
        "not rule out growth; two steps of a recording do."
    )


def _shown(command: str, planned: Workload) -> Iterator[str]:
    """A command and the plan that it prints."""
    yield from _console(command, plan_report(examine(planned, gb10()), by_name(TRAINER).title))


def _console(command: str, shown: RenderableType) -> Iterator[str]:
    console = Console(file=io.StringIO(), width=110, no_color=True, highlight=False, legacy_windows=False)
    console.print(shown)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    yield "```console"
    yield f"$ {command}"
    yield "\n".join(line.rstrip() for line in text.splitlines())
    yield "```\n"


def _flags(settings: tuple[str, ...]) -> str:
    return " ".join(f"--set {setting}" for setting in settings)


PAGES = {"gb10-4b": gb10_4b, "pick-a-size": pick_a_size, "step-75": step_75}


def page(name: str) -> str:
    """The text of a page."""
    return "\n".join(PAGES[name]()) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PAGES:
        sys.exit(f"usage: python benchmarks/cases.py {'|'.join(PAGES)}")
    sys.stdout.write(page(sys.argv[1]))
