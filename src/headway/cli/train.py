"""`headway train RUN`: plan, then train inside the plan, recording; resume from the last checkpoint.

Imports stand in the functions, so that a command loads only what it runs.
"""

import json
import os
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.answering import answering
from headway.config.accept import Accept
from headway.errors import DiskFullError, DoesNotFitError, HeadwayError, LimitReachedError, RewardsFailedError

if TYPE_CHECKING:
    from rich.console import Console

    from headway.cli.planning import TrainPlan
    from headway.config.sections import RunSpec
    from headway.plan.disk import DiskVerdict
    from headway.plan.planned import Planned


class OnLimit(StrEnum):
    """What follows a stop at a memory limit."""

    STOP = "stop"
    RESUME = "resume"


RUN_HELP = "RunSpec, a TOML file; or the folder of a run, to resume it."
TRAINER = "headway"
"""The trainer in a plan's own words."""


@answering
def train(
    run: Annotated[Path, typer.Argument(help=RUN_HELP)],
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the file's.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and the RunSpec as it would run.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Start even when the plan is over a limit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print summary.json (with --dry-run: the plan) at the end.")
    ] = False,
    on_limit: Annotated[
        OnLimit,
        typer.Option("--on-limit", help="At a memory limit: stop, or go on in a fresh process from the checkpoint."),
    ] = OnLimit.STOP,
    accept: Annotated[
        list[Accept] | None,
        typer.Option(
            "--accept-changes", help="Resume although the reward's code, or the data, changed.", show_default=False
        ),
    ] = None,
    tries: Annotated[int, typer.Option("--tries", hidden=True, min=0)] = 0,
) -> None:
    """Train a model inside the memory there is.

    The same command resumes a run that stopped.

    Exit code 0: finished. 2: bad input. 3: the plan does not fit. 5: memory ran out, or the guard stopped the run.

    6: most answers could not be scored, so the run stopped at once. 7: the disk is full.

    129, 130, 143: a closed terminal, Ctrl-C or SIGTERM. 1: a mistake of headway's own.
    """
    from rich.console import Console

    from headway.cli.disk import disk_document, disk_verdict
    from headway.cli.planning import check_start, make_plan
    from headway.config.load import dump
    from headway.config.run_folder import load_run
    from headway.reports.ledger import refusal, remedy_line
    from headway.reports.plan_json import document

    console = Console(stderr=as_json)
    spec = load_run(run, set_ or ())
    settle_libraries()
    if not dry_run and (summary := _finished(spec, accept or ())) is not None:
        console.print(nothing_to_do(summary, spec), markup=False, highlight=False, soft_wrap=True)
        if as_json:
            print_json(summary)
        return
    found = make_plan(spec, console.print)
    planned, verdicts = found.planned, found.planned.outcome.pools
    on_disk = disk_verdict(spec, planned.workload)
    _print_plan(planned, on_disk, spec, console)
    if dry_run:
        console.print(dump(spec), markup=False, highlight=False)
        if as_json:
            print_json(document(planned, TRAINER) | {"disk": disk_document(on_disk)})
    if not planned.fits and not force:
        advice = [remedy_line(each) for each in planned.advice.remedies]
        raise DoesNotFitError(refusal(planned.ledger, verdicts, advice))
    if not force:
        on_disk.check()
    check_start(spec, accept or (), whole=dry_run)
    if dry_run:
        return
    with _told_by_the_doctor(spec):
        summary = _run_or_go_on(spec, found, console, accept or (), tries if on_limit is OnLimit.RESUME else None)
    if as_json:
        print_json(summary)
    if summary["exit_reason"] == DiskFullError.exit_reason:
        raise DiskFullError(summary["problem"])
    if summary["signal"] is not None and summary["exit_reason"] != "finished":
        raise typer.Exit(128 + summary["signal"])
    if summary["problem"] is not None:
        raise RewardsFailedError(summary["problem"])
    if summary["exit_reason"] == "guard":
        raise typer.Exit(LimitReachedError.exit_code)


def _print_plan(planned: "Planned", on_disk: "DiskVerdict", spec: "RunSpec", console: "Console") -> None:
    """What the run will hold, what it will write, how long it will take, and what this CPU is slow at."""
    from headway.cli.again import place
    from headway.facts.probe import bf16_arithmetic
    from headway.reports.ledger import ledger_table
    from headway.reports.time import time_line

    assert spec.output.dir is not None, "the loader sets it"
    console.print(ledger_table(planned.ledger, planned.machine, planned.outcome.pools))
    console.print(on_disk.text(), markup=False, highlight=False)
    if (line := time_line(planned, place(spec.output.dir / "checkpoints").step)) is not None:
        console.print(line)
    if spec.model.dtype == "bf16" and planned.workload.device == "cpu" and bf16_arithmetic() is False:
        console.print('[yellow]This CPU has no bf16 arithmetic: model.dtype = "fp32" trains many times faster here.')


def _finished(spec: "RunSpec", accepted: Collection[Accept]) -> dict[str, Any] | None:
    """The summary of this run where it is finished; None where it has steps left or has not begun. InputError where
    another run is in its directory."""
    from headway.train.output import RunFolder

    assert spec.output.dir is not None, "the loader sets it"
    folder = RunFolder(spec.output.dir)
    summary: dict[str, Any] | None = folder.finished(spec.train.steps)
    if summary is not None:
        from headway.train.resume import claim

        claim(folder, spec, accepted)
    return summary


def nothing_to_do(summary: dict[str, Any], spec: "RunSpec") -> str:
    """What a user reads who starts a finished run again."""
    done, steps = summary["steps"], spec.train.steps
    return (
        f"nothing to do: {done} of {max(done, steps)} steps are done; set train.steps to go on "
        f"({spec.output.dir} is as it was)"
    )


@contextmanager
def _told_by_the_doctor(spec: "RunSpec") -> Iterator[None]:
    """After a bad end the doctor's sentence is the last thing printed; our own mistakes keep their traceback."""
    assert spec.output.dir is not None, "the loader sets it"
    try:
        yield
    except LimitReachedError as error:
        from headway.cli.ending import sentence_of

        raise LimitReachedError(f"{error}\n{sentence_of(str(error), spec.output.dir)}") from None
    except (HeadwayError, typer.Exit):
        raise
    except Exception:  # noqa: BLE001 - whatever it is, it is printed whole
        import traceback

        from headway.cli.ending import sentence_of

        text = traceback.format_exc()
        typer.echo(f"{text}{sentence_of(text, spec.output.dir)}", err=True)
        raise typer.Exit(1) from None


def _run_or_go_on(
    spec: "RunSpec", found: "TrainPlan", console: "Console", accepted: Collection[Accept], tries: int | None
) -> dict[str, Any]:
    """The summary of a run that did not end at a limit, or that is not to go on (`tries` is None)."""
    from headway.cli.again import go_on, place

    assert spec.output.dir is not None, "the loader sets it"
    checkpoints = spec.output.dir / "checkpoints"
    before = place(checkpoints)
    try:
        summary = _run(spec, found, console, accepted)
    except LimitReachedError as error:
        if tries is None:
            raise
        go_on(before, place(checkpoints), tries, f"headway: {error}")
    if tries is not None and summary["exit_reason"] == "guard" and summary["signal"] is None:
        go_on(before, place(checkpoints), tries, "headway: the guard stopped the run at a limit")
    return summary


def _run(spec: "RunSpec", found: "TrainPlan", console: "Console", accepted: Collection[Accept]) -> dict[str, Any]:
    """Train under a live view, then show predicted against measured and where everything is."""
    from headway.cli.disk import disk_document, disk_verdict
    from headway.reports.live import LiveView, PlainView
    from headway.reports.plan_json import document
    from headway.reports.terminal import comparison_table, final_summary
    from headway.train.run import run

    planned = found.planned
    on_disk = disk_verdict(spec, planned.workload)
    verdict = planned.outcome.pools[0]
    limit, predicted = verdict.limit, planned.ledger.peak(verdict.pool).bytes
    limit_bytes = None if limit is None else limit.bytes
    with (
        LiveView(console, spec.train.steps, limit_bytes, predicted)
        if console.is_terminal
        else PlainView(sys.stderr if console.stderr else sys.stdout, spec.train.steps, limit_bytes, predicted)
    ) as view:
        summary: dict[str, Any] = run(
            spec,
            found.source,
            planned.machine,
            planned.ledger,
            found.longest_sample,
            json.dumps(document(planned, TRAINER) | {"disk": disk_document(on_disk)}, indent=1) + "\n",
            view,
            accepted,
        )
    if summary["exit_reason"] == "finished" and spec.model.init == "pretrained":
        keep_rate(spec, planned)
    console.print(comparison_table(planned.ledger, summary))
    if summary["steps"] and not any(step.get("trained_tokens", 1) for step in _steps(spec)):
        console.print(
            "No step trained: all groups had equal rewards in each. What training and its optimizer hold was not "
            "reached, so those rows say nothing of the plan.\n"
        )
    console.print(final_summary(summary))
    return summary


def _steps(spec: "RunSpec") -> Iterator[dict[str, Any]]:
    """The records of the run's steps."""
    assert spec.output.dir is not None, "the loader sets it"
    with (spec.output.dir / "metrics.jsonl").open() as lines:
        yield from map(json.loads, lines)


def keep_rate(spec: "RunSpec", planned: "Planned") -> None:
    """Keep how fast the run was, for the next plan on this machine: the middle of its steps, the first one apart."""
    import time
    from statistics import median

    from headway.facts.speeds import Rate, keep

    steps = list(_steps(spec))[-50:]
    rates = [
        [step[name] for step in steps[len(steps) > 1 :] if step.get(name)]
        for name in ("rollout_tokens_per_s", "train_tokens_per_s", "answer_tokens")
    ]
    if all(rates):
        model = planned.workload.model
        rollout, trained, answer = (median(each) for each in rates)
        answered = round(spec.rollout.prompts * spec.rollout.samples * answer)
        device, dtype, lora = planned.workload.device, spec.model.dtype, spec.lora is not None
        day = time.strftime("%Y-%m-%d")
        keep(Rate(model.name, model.active_parameters(), device, dtype, lora, rollout, trained, day, answered))


def settle_libraries() -> None:
    """Before libraries load: threads that wait do not spin, and progress bars and advice stay out of the view."""
    # a spinning OpenMP thread slows every other process of a shared machine, and then itself, about tenfold
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import logging

    logging.getLogger("datasets").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="torch|transformers|peft|datasets")


def print_json(value: dict[str, Any]) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
