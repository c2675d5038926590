"""What `headway watch` knows of a run before it starts: its command read as a launch, and planned.

That happens in a process of its own, so that the watching one stays small and a command that cannot be read harms
nobody. Nothing of the command is executed. The process answers in one JSON document, and is ended where it takes too
long.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from headway.cli.inputs import Case

WAIT_S = 1.0
"""Seconds that a command is held back for its plan; what is ready later is recorded and shown later."""
LIFE_S = 30
"""Seconds after which a plan is given up."""
MEMORY = 2 << 30
"""Bytes of address space that the planning may take."""
SAID = 300
"""Characters of a reason, and of a command that is shown."""
_LAUNCH = re.compile(r"\.(?:py|sh|bash|zsh|ksh|slurm|sbatch)\b|train|(?:^|\s)-m\s|\btrl\b")
_MODEL = re.compile(r"(?![\w.]+=)")
"""A value that is no key=value."""


class Request(Struct, frozen=True):
    """The command to read, and what the command line of `headway watch` says of it. `given` are settings, and the
    name of a model among them.

    >>> Request(("bash", "run.sh"), None, ("qwen3-4B", "host.bytes=1600e9")).model
    'qwen3-4B'
    """

    command: tuple[str, ...]
    machine: str | None
    given: tuple[str, ...]

    @property
    def asked(self) -> bool:
        """Whether somebody asked for a plan."""
        return self.machine is not None or bool(self.given)

    @property
    def model(self) -> str | None:
        """The model that was named, the last one where there are several."""
        return next((each for each in reversed(self.given) if _MODEL.match(each)), None)

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings, `key=value`."""
        return tuple(each for each in self.given if not _MODEL.match(each))

    @property
    def own(self) -> bool:
        """Whether the command is a run of headway's own trainer."""
        return run_of(self.command) is not None


class Plan(Struct, frozen=True):
    """What was found. `spec` and `ledger` are for the black box, `says` is the verdict in a line; where there is no
    plan, `why_not` says why, and `launch` whether the command is one that somebody may expect a plan of."""

    spec: str = ""
    ledger: str = ""
    says: str = ""
    why_not: str = ""
    launch: bool = False


def as_utf8(word: str) -> str:
    """A word of a command line as JSON can have it: bytes that are no UTF-8 become the replacement character.

    >>> as_utf8("caf\\udce9"), as_utf8("café")
    ('caf�', 'café')
    """
    return os.fsencode(word).decode(errors="replace")


def may_be_launch(command: Sequence[str]) -> bool:
    """Whether it is worth reading a command: it names a script or a trainer, as far as its words show.

    >>> may_be_launch(["sleep", "5"]), may_be_launch(["bash", "run.sh"]), may_be_launch(["python3", "-c", "train()"])
    (False, True, False)
    """
    if not command or (len(command) > 1 and command[1] == "-c" and "python" in Path(command[0]).name):
        return False
    if _LAUNCH.search(" ".join(command)[: 64 << 10]):
        return True
    from headway.cli.inputs import is_shell_script

    return any(is_shell_script(Path(word)) for word in command[:1] if "/" in word)


def run_of(command: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The RunSpec that a command of `headway train` names, and its settings; None for another command.

    >>> run_of("headway train --set train.lr=1e-5 run.toml --on-limit resume".split())
    ('run.toml', ('train.lr=1e-5',))
    >>> run_of("bash run.sh".split())
    """
    words = list(command)
    if [*words[1:3], ""][:2] == ["-m", "headway"] and "python" in Path(words[0]).name:
        words = ["headway", *words[3:]]
    if len(words) < 2 or Path(words[0]).name != "headway" or words[1] != "train":
        return None
    runs: list[str] = []
    settings: list[str] = []
    rest = iter(words[2:])
    for word in rest:
        name, is_set, value = word.partition("=")
        if name == "--set":
            settings.append(value if is_set else next(rest, ""))
        elif word in ("--on-limit", "--tries"):
            next(rest, None)
        elif not word.startswith("-"):
            runs.append(word)
    return (runs[0], tuple(settings)) if len(runs) == 1 else None


class Planner:
    """Plans a command beside what else is to be done before it starts. A context manager, which ends the planning."""

    def __init__(self, command: Sequence[str], machine: str | None = None, given: Sequence[str] = ()) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._found: Plan | None = None
        request = Request(
            tuple(map(as_utf8, command)), None if machine is None else as_utf8(machine), tuple(map(as_utf8, given))
        )
        if not (request.asked or may_be_launch(command)):
            self._found = Plan()
            return
        self._began = time.monotonic()
        self._answer: BinaryIO = BytesIO()
        try:
            self._answer = tempfile.TemporaryFile()  # noqa: SIM115 - open until the answer is read
            with tempfile.TemporaryFile() as asked:
                asked.write(msgspec.json.encode(request))
                asked.seek(0)
                # -P: no module of the folder that the command runs in
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", __name__], stdin=asked, stdout=self._answer,
                    stderr=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            self._answer.close()
            self._found = Plan(why_not=f"not planned: {error.strerror}", launch=request.asked)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._found is None:
            self._process.kill()
            self._process.wait()
            self._answer.close()

    def result(self, wait_s: float = 0.0) -> Plan | None:
        """The plan, or why there is none; None where that takes longer than `wait_s` seconds."""
        if self._found is None:
            assert self._process is not None
            try:
                self._process.wait(wait_s)
            except subprocess.TimeoutExpired:
                if time.monotonic() - self._began < LIFE_S:
                    return None
                self._process.kill()
                self._process.wait()
            self._found = self._read()
        return self._found

    def _read(self) -> Plan:
        assert self._process is not None
        with self._answer as file:
            file.seek(0)
            try:
                return msgspec.json.decode(file.read(), type=Plan)
            except msgspec.MsgspecError:
                code = self._process.returncode
                return Plan(why_not=f"not planned: the planning ended with code {code} and without an answer")


# -- in the process that plans ---------------------------------------------------------------------------


def main() -> None:
    """Read a request on standard input, and write the answer on standard output."""
    import resource
    import signal

    signal.alarm(2 * LIFE_S)  # should nobody be left who waits
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    sys.stdout.buffer.write(msgspec.json.encode(planned(request)))


def planned(request: Request) -> Plan:
    """The plan of a command, or why there is none."""
    from headway.errors import HeadwayError

    try:
        case = _case(request)
    except HeadwayError as error:
        if not (request.asked or request.own):
            return Plan(why_not=_why_not(error))
        return Plan(why_not=_why_not(error), launch=True)
    except (MemoryError, RecursionError, OSError, ValueError) as error:
        return Plan(why_not=f"not planned: the command cannot be read ({type(error).__name__})", launch=request.asked)
    if isinstance(case, Plan):
        return case
    return _plan(case, request)


def _case(request: Request) -> "Case | Plan":
    """The run of the command. InputError where it starts no trainer that is known; a plan that says why not, with
    what was read, where the launch is known and leaves something open."""
    from headway.cli.inputs import is_launch, read_case
    from headway.errors import HeadwayError, InputError

    found = run_of(request.command)
    if found is not None:
        return read_case([found[0]], None, request.machine, (*found[1], *request.settings))
    if not is_launch(request.command):
        raise InputError(f"{shlex.join(request.command)[:SAID]}: is no launch script and no command that is known")
    from headway.cli.launch import launch_case, read_launch

    launch = read_launch(request.command)
    try:
        return launch_case(launch, request.model, request.machine, None, request.settings)
    except HeadwayError as error:
        from headway.guard.boxplan import SPEC_BYTES
        from headway.reports.launch_json import settings_document

        spec = _bounded(_text(settings_document(launch.found)), SPEC_BYTES)
        return Plan(spec=spec, why_not=_why_not(error), launch=True)


def _plan(case: "Case", request: Request) -> Plan:
    from headway.errors import HeadwayError
    from headway.guard.boxplan import LEDGER_BYTES, SPEC_BYTES
    from headway.plan.planned import examine
    from headway.reports.plan_json import document

    spec = _bounded(_spec(case), SPEC_BYTES)
    try:
        planned = examine(case.workload, case.machine)
        if case.launch is not None:
            from headway.cli.launch import in_words

            planned = in_words(planned, case.launch.found, request.settings)
        ledger = _text(document(planned, case.trainer))
    except HeadwayError as error:
        return Plan(spec=spec, why_not=_why_not(error), launch=True)
    kept = _bounded(ledger, LEDGER_BYTES)
    why_not = "" if kept else f"the plan is too large for the black box: {len(ledger):,} bytes"
    return Plan(spec, kept, verdict_line(ledger, plan_command(request)), why_not, launch=True)


def _bounded(text: str, most: int) -> str:
    """The text; nothing of one that is longer than so many bytes."""
    return text if len(text.encode(errors="replace")) <= most else ""


def _spec(case: "Case") -> str:
    """What was read: a RunSpec as TOML, else the settings of a launch with its lint as JSON."""
    if case.spec is not None:
        from headway.config.load import dump

        return dump(case.spec)
    assert case.launch is not None
    from headway.reports.launch_json import lint_document, settings_document

    notes = case.launch.lint(case.workload, None)
    return _text({**settings_document(case.launch.found), "lint": lint_document(notes)})


def _text(document: object) -> str:
    return msgspec.json.encode(document).decode()


def _why_not(error: Exception) -> str:
    """A reason on one line."""
    from headway.cli.launch import reason_of
    from headway.errors import InputError

    text = reason_of(error if isinstance(error, InputError) else InputError(str(error)))
    return f"not planned: {text if len(text) <= SAID else f'{text[:SAID]} ...'}"


def plan_command(request: Request) -> str:
    """The command that shows the whole plan.

    >>> plan_command(Request(("bash", "run.sh"), "gb10", ("qwen3-4B", "rollout.max_answer=64")))
    'headway plan --model qwen3-4B --machine gb10 --set rollout.max_answer=64 -- bash run.sh'
    """
    found = run_of(request.command)
    words = ["headway", "plan", *(["--model", request.model] if request.model is not None else [])]
    words += ["--machine", request.machine] if request.machine is not None else []
    for setting in (*(found[1] if found is not None else ()), *request.settings):
        words += ["--set", setting]
    made = shlex.join([*words, *((found[0],) if found is not None else ("--", *request.command))])
    return made if len(made) <= SAID else f"{shlex.join(words)} -- COMMAND"


def verdict_line(ledger: str, tells_more: str) -> str:
    """The verdict of a plan in a line: where it was made for, what decides, and who tells more where it is needed."""
    from headway.facts.workload import unknown_key
    from headway.guard.boxplan import plan_of
    from headway.units import format_bytes

    plan = plan_of(ledger)
    assert plan is not None, "the document of a plan is one"
    text = f"planned on {plan.machine}: {plan.verdict}"
    pool = plan.tightest
    if plan.refusals:
        text += f": {plan.refusals[0][:SAID]}"
    elif plan.verdict == "cannot tell" and plan.deciding:
        names = ", ".join(unknown_key(each) for each in plan.deciding)
        text += f": nobody said {names[:SAID]}, which decides; --set it"
    elif plan.verdict == "cannot tell" and plan.unplanned:
        text += f": {plan.unplanned[0][:SAID]}"
    elif pool is not None and pool.limits:
        limit = pool.limits[0]
        over = plan.verdict == "does not fit"
        size = (
            f"{format_bytes(pool.expected_bytes)} expected" if over else f"{format_bytes(pool.upper_bytes)} at most"
        )
        text += f": {pool.pool} {size} of {format_bytes(limit.bytes)} ({limit.name}), phase {pool.worst.phase}"
    if plan.verdict == "fits":
        return text
    started = "; it is started all the same" if plan.verdict == "does not fit" else ""
    return f"{text}{started}; {tells_more} tells more"


if __name__ == "__main__":
    main()
