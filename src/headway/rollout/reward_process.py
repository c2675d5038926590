"""The process that runs code which is not headway's: a task's scorer, math-verify, the user's function.

Such code may hang, crash, print, take memory or run a model's answer as Python (several reasoning-gym scorers call
`eval` on it), so none of it runs in the trainer. `worker.py` starts this module, sends one set-up message, and then
one request at a time. torch is never imported here, so the process stays small.
"""

import base64
import ctypes
import dataclasses
import importlib
import inspect
import io
import logging
import math
import os
import pickle
import resource
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from types import ModuleType
from typing import Any, BinaryIO

from headway.errors import InputError
from headway.rollout.frames import Message, encode, receive
from headway.units import format_bytes

Handler = Callable[[Message], Message]

PR_SET_PDEATHSIG = 1  # from linux/prctl.h
NOTE_LENGTH = 200
TRACE_LINES = 8
LARGEST = 3.4e38
"""A reward beyond it is infinite in 32 bits, in which the loss is computed."""

GENERATION_ERRORS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)


def main() -> None:
    """Answer requests until the other end closes."""
    source, sink = take_pipes()
    end_with_parent()
    setup = receive(source)
    if setup is None:
        return
    handler = start(setup, sink)
    while handler is not None and (request := receive(source)) is not None:
        send(sink, guarded(handler, request))


def send(sink: BinaryIO, message: Message) -> None:
    """Write one message."""
    sink.write(encode(message))
    sink.flush()


def start(setup: Message, sink: BinaryIO) -> Handler | None:
    """Import what will score, and report whether that worked."""
    try:
        limit_memory(setup["memory"])
        sys.path[:0] = setup["folders"]
        handler = OPENERS[setup["kind"]](setup)
    except InputError as error:
        send(sink, {"problems": list(error.problems)})
        return None
    except ImportError as error:
        problem = (
            f"what scores the answers cannot be imported: {describe(error)}; install what trains (in the repository: "
            "pip install '.[train]'), or set reward.memory higher"
        )
        send(sink, {"problems": [problem]})
        return None
    except MemoryError:
        size = format_bytes(setup["memory"])
        problem = f"reward.memory = {size}: is too little to import what scores the answers; set more"
        send(sink, {"problems": [problem]})
        return None
    send(sink, {"ready": True})
    return handler


def guarded(handler: Handler, request: Message) -> Message:
    """The handler's reply; whatever it raises scores nothing and is reported.

    This is the boundary around foreign code: it may raise anything, `sys.exit()` included.
    """
    try:
        return handler(request)
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return {"failure": "exception", "note": describe(error), "trace": last_lines(error)}


def last_lines(error: BaseException) -> list[str]:
    """The last lines of a traceback, for the log."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return [line[:NOTE_LENGTH] for line in lines[-TRACE_LINES:]]


def describe(error: BaseException) -> str:
    """Type and first line of an exception, and the line that raised it: the user's own, where a library was below."""
    first = next(iter(str(error).splitlines()), "")
    ours = (__file__, importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in ours and not frame.filename.startswith("<frozen")
    ]
    libraries = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    own = [frame for frame in frames if not frame.filename.startswith(libraries)] or frames
    place = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {first}"[:NOTE_LENGTH] + place


# -- process ---------------------------------------------------------------------------------------------


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep standard input and output for the messages; what foreign code prints goes to standard error.

    Works on the descriptors, so that prints of C code and of grandchildren cannot reach the messages either.
    """
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # the process ends by a signal, which flushes nothing
    return source, sink


def end_with_parent() -> None:
    """Ask the kernel to kill this process when the trainer dies; elsewhere it ends when its input closes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def limit_memory(limit: int | None) -> None:
    """Bound private writable memory, also where the parent's own bound is lower, and leave no core dump of a crash.

    RLIMIT_DATA and not RLIMIT_AS: address space that thread pools only reserve costs no memory.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if limit is not None:
        wanted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)  # only root may go beyond the latter
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))


# -- the user's function ---------------------------------------------------------------------------------


def open_function(setup: Message) -> Handler:
    """Import `module:function`; requests hold prompt, answer, label and response."""
    function = import_function(setup["function"], setup["folders"])
    check_call(function, setup["function"])

    def score(request: Message) -> Message:
        return verdict(function(request["prompt"], request["answer"], request["label"], request["response"]))

    return score


def import_function(name: str, folders: Iterable[str]) -> Callable[..., Any]:
    """The callable that `module:function` names. InputError says why it cannot be had."""
    setting = f'reward.function = "{name}"'
    module_name, _, attribute = name.partition(":")
    module = import_module(module_name, setting, folders)
    if not hasattr(module, attribute):
        callables = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{setting}: {module_name} has no {attribute}{near(attribute, callables)}")
    function = getattr(module, attribute)
    if not callable(function):
        raise InputError(f"{setting}: {attribute} is {type(function).__name__}, not a function; name a function")
    return function  # type: ignore[no-any-return]


def check_call(function: Callable[..., Any], name: str) -> None:
    """InputError for a function that a plain call with four positional arguments cannot score with."""
    called = (
        f"headway calls {name.partition(':')[2]}(prompt, answer, label, response) and takes the number it returns"
    )
    # An object that is called has its code in its type's __call__.
    code = function if inspect.isroutine(function) else type(function).__call__
    if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        raise InputError(f'reward.function = "{name}": is an async function; {called}: write def without async')
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind("", "", "", "")
    except TypeError as error:
        raise InputError(f'reward.function = "{name}": takes {signature}; {called}: {error}') from None


def import_module(name: str, setting: str, folders: Iterable[str]) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, MemoryError):
            raise
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            where = ", ".join(dict.fromkeys(folders))
            raise InputError(
                f"{setting}: there is no module {name} in {where} or among the installed packages; "
                "put its file beside the RunSpec"
            ) from None
        raise InputError(f"{setting}: importing {name} fails with {describe(error)}; mend it") from None


def verdict(value: Any) -> Message:
    """A score from what foreign code returned, or why it is none."""
    if inspect.iscoroutine(value):
        value.close()
        return {"failure": "result", "note": "returned a coroutine: not a number; an async function is not awaited"}
    if value is None:
        return {"failure": "result", "note": "returned None: not a number; each path of the function must return one"}
    shown = repr(value)[:60]
    if isinstance(value, str):
        return {"failure": "result", "note": f"returned the string {shown}: not a number"}
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        return {"failure": "result", "note": f"returned {shown}: not a number"}
    number = float(value)
    if math.isnan(number):
        return {"failure": "result", "note": "returned NaN"}
    if not abs(number) <= LARGEST:
        return {"failure": "result", "note": f"returned {shown}: not finite in 32 bits"}
    return {"value": number}


# -- math-verify -----------------------------------------------------------------------------------------


def open_math(_: Message) -> Handler:
    """math-verify; requests hold answer and label.

    math-verify finds LaTeX only between delimiters, and numbers anywhere. A label without delimiters is taken as one
    expression; an answer without them may be one, or text with a number in it. Its own time limits use SIGALRM and
    count whole seconds; the trainer's limit on the whole request stands in.
    """
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)

    def delimited(text: str) -> bool:
        return any(mark in text for mark in ("$", "\\(", "\\[", "\\boxed"))

    def found_in(text: str) -> list[Any]:
        return parse(text, parsing_timeout=None)  # type: ignore[no-any-return]

    def score(request: Message) -> Message:
        label, answer = request["label"], request["answer"]
        gold = (not delimited(label) and found_in(f"${label}$")) or found_in(label)
        if not gold:
            return {"failure": "label", "note": f"label {label[:60]!r} is not mathematics"}
        found = found_in(answer)
        if not delimited(answer):
            found = found_in(f"${answer}$") + found
        return {"value": float(verify(gold, found, timeout_seconds=None))}

    return score


# -- reasoning-gym ---------------------------------------------------------------------------------------


def open_task(setup: Message) -> Handler:
    """A reasoning-gym dataset. Requests either draw problems or score an answer to one.

    An entry travels pickled in base64: JSON would turn its tuples into lists and its integer keys into text, which
    several scorers do not survive. Only this module reads one, and only one that it wrote.
    """
    task, params = setup["task"], setup["params"]
    open_dataset(task, params, seed=0, size=1)
    opened: dict[int, Any] = {}

    def dataset(seed: int, size: int) -> Any:
        if seed not in opened:
            opened.clear()
            opened[seed] = open_dataset(task, params, seed, size)
        return opened[seed]

    def handle(request: Message) -> Message:
        if "draw" in request:
            return draw(dataset(request["seed"], request["size"]), setup, request["draw"])
        entry = pickle.loads(base64.b64decode(request["entry"]))
        return verdict(dataset(0, 1).score_answer(request["answer"], entry))

    return handle


def draw(source: Any, setup: Message, indices: Iterable[int]) -> Message:
    """Question, answer ("" where the task has no single one) and pickled entry of each index."""
    problems = []
    for index in indices:
        try:
            entry = source[index]
        except GENERATION_ERRORS as error:
            return {"problems": [f"{_setting(setup)}: reasoning-gym cannot make a problem: {describe(error)}"]}
        answer = entry["answer"]
        pickled = base64.b64encode(pickle.dumps(entry)).decode("ascii")
        problems.append((entry["question"], "" if answer is None else str(answer), pickled))
    return {"drawn": problems}


def do_without_solver() -> None:
    """Let reasoning-gym be imported without pycosat, which pip must compile and only zebra_puzzles uses."""
    if "pycosat" in sys.modules or find_spec("pycosat") is not None:
        return

    def itersolve(_clauses: Any) -> Any:
        raise ValueError("it needs the package pycosat: pip install pycosat, with a C compiler at hand")

    stand_in = ModuleType("pycosat")
    stand_in.itersolve = itersolve  # type: ignore[attr-defined]
    sys.modules["pycosat"] = stand_in


def open_dataset(task: str, params: Mapping[str, Any], seed: int, size: int) -> Any:
    """Create a dataset. InputError for a task or a parameter that it does not know, and for a value it refuses."""
    do_without_solver()
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise InputError(
            f'data.task = "{task}": needs the package reasoning-gym ({error}): pip install reasoning-gym, '
            "or set data.file"
        ) from None

    if task not in DATASETS:
        raise InputError(f'data.task = "{task}": reasoning-gym has no such dataset{near(task, sorted(DATASETS))}')
    known = {field.name for field in dataclasses.fields(DATASETS[task][1])}
    problems = [
        f"data.params.{name}: comes from data.problems and train.seed; remove it"
        if name in ("seed", "size")
        else f"data.params.{name}: {task} has no such parameter{near(name, sorted(known - {'seed', 'size'}))}"
        for name in params
        if name not in known or name in ("seed", "size")
    ]
    if problems:
        raise InputError(*problems)
    try:
        return create_dataset(task, seed=seed, size=size, **params)
    except GENERATION_ERRORS as error:
        setting = _setting({"task": task, "params": params})
        raise InputError(f"{setting}: reasoning-gym refuses it: {describe(error)}") from None


def _setting(setup: Message) -> str:
    params = ", ".join(f"{name} = {value!r}" for name, value in setup["params"].items())
    return f'data.task = "{setup["task"]}"' + (f" with data.params {params}" if params else "")


def near(name: str, known: list[str]) -> str:
    """`; near it: a, b`, or else all that there is."""
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"; near it: {', '.join(close)}"
    return f"; it has {', '.join(known)}" if known else ""


OPENERS: dict[str, Callable[[Message], Handler]] = {
    "function": open_function,
    "math": open_math,
    "task": open_task,
}

if __name__ == "__main__":
    main()
