"""Tracebacks of Python as one item: the exception, its message, and the calls that led to it."""

import re
from collections.abc import Sequence

from headway.diagnose.evidence import Evidence, Line
from headway.diagnose.text import without_prefix

NEEDLES = ("traceback (most recent call last)", "systemexit")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_ERROR = re.compile(
    r"(?:^|[\s\])|])(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Failure|StopIteration))"
    r"(?P<inner>\(\w+\))?(?:: (?P<message>.*))?$"
)
_PLAIN = re.compile(r"^(?P<type>(?:Base)?Exception)(?P<inner>)(?:: (?P<message>.*))?$")
"""The last line of a traceback whose exception has no name of its own."""
WRAPPERS = re.compile(
    r"Ray(?:Actor|Task|System)?Error|ActorDied|WorkerCrashed|ActorUnavailable|NodeDied|OwnerDied|ObjectLost|Owner|TaskUnschedulable|"
    r"EngineDead|AsyncEngineDead|ChildFailed|ProcessExited|ProcessRaised|CalledProcess|SubprocessError|BrokenProcessPool|GetTimeout|LocalRayletDied|"
    r"JobFailed|ClientError|BrokenPipe|WorkerDied|ServerDisconnected|RemoteDisconnected|ClientConnector|ConnectError"
)
"""Exceptions that tell of another process's end."""
TEARDOWN = re.compile(
    r"register atexit after shutdown|new futures after|[Ee]vent loop is closed|interpreter shutdown|"
    r"sys\.meta_path is None|Python is likely shutting down"
)
"""What Python says of a process that is ending already."""
NATIVE = re.compile(r"\.(?:cc|cpp|cxx|cu|hpp|h):\d+[:\]]")
"""A line of a C++ log, whose errors are statuses, not exceptions."""
LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python|<frozen|/(?:slime|miles|verl|trl|openrlhf|megatron|Megatron-LM|"
    r"sglang|vllm|ray|torch|transformers|nemo_rl|deepspeed|skyrl\w*|areal|axolotl|unsloth\w*|llamafactory|"
    r"open_instruct|prime_rl|swift|torchtune|torchtitan|rllm|rlinf|xtuner|accelerate|peft|datasets|lightning)/",
    re.IGNORECASE,
)
"""A file that is none of the user's own."""
_RAISED = re.compile(
    r"^\s*(?:raise \w[\w.]*\((?:\s*$|(?=.*[\"']))(?!.*\b(?:e|ex|exc|err|error)\b[!)}])(?!.*\) from \w)|"
    r"assert\b.*[\"'])"
)
"""A source line that makes an exception with words of its own: none that raises a caught one again."""
_MARKERS = re.compile(r"^[\s~^]*$")
CAUGHT = re.compile(
    r"^\s*(?:#|except|raise |from |import )|(?:Ignoring|ignored|Retry|WARNING|WARN\b|caught|will retry|non-fatal)",
    re.I,
)


def read_traceback(line: Line) -> Evidence | None:
    """The traceback that begins at a line; None where the line begins none, or its exception is cut off."""
    if "Traceback (most recent call last)" not in line.text:
        return None
    frames: list[str] = []
    above = ""
    for _, text in line.after:
        if text and line.process.pid is not None and f"pid={line.process.pid}" not in text and "pid=" in text[:80]:
            continue  # another process's line in between
        plain = without_prefix(text)
        frame = _FRAME.match(plain)
        if frame is not None:
            frames.append(f"{frame['file']}:{frame['line']} {frame['name']}")
        elif (
            frames
            and (error := _ERROR.search(plain[:600]) or _PLAIN.match(plain[:600]))
            and not plain.startswith("    ")
        ):
            return _evidence("python-traceback", line, error, frames, line.after, above)
        elif "Traceback (most recent" in plain:
            return None
        above = above if _MARKERS.match(plain) else plain
    return None


def read_error(line: Line) -> Evidence | None:
    """An exception's last line that stands alone."""
    text = without_prefix(line.text)[:600]
    if CAUGHT.search(text):
        return None
    error, native = _ERROR.search(text), NATIVE.search(text)
    if error is None or (native is not None and native.start() < error.start()):
        return None
    own = f"pid={line.process.pid}" if line.text.lstrip().startswith("(") and line.process.pid is not None else ""
    plain = [without_prefix(before) for _, before in line.before if own in before]
    last = max((n for n, each in enumerate(plain) if "Traceback (most recent call last)" in each), default=0)
    plain = plain[last:]
    return _evidence("python-error", line, error, _frames(plain), line.after, _above(plain))


def raised_by_user(found: Evidence) -> bool:
    """Whether the exception's text was written in a file of the user's own, as the source line above it shows."""
    last = found.fields.get("frames", "").split("\n")[-1]
    return bool(found.fields.get("raised") and last and not LIBRARY.search(last))


def _evidence(
    kind: str, line: Line, error: re.Match[str], frames: list[str], after: Sequence[tuple[int, str]], above: str
) -> Evidence:
    """A `RayTaskError(KeyError)` says where it came from; its last line, further down, is the KeyError itself."""
    name, message = error["type"], error["message"] or ""
    if error["inner"]:
        name = error["inner"].strip("()")
        plain = [without_prefix(text)[:600] for _, text in after]
        own = [n for n, text in enumerate(plain) if text.partition(":")[0].rpartition(".")[2] == name]
        if own:
            message = plain[own[-1]].partition(": ")[2]
            above = _above(plain[: own[-1]])
            frames = _frames(plain[: own[-1]]) or frames
    fields = {"type": name, "message": message, "frames": "\n".join(frames[-40:])}
    if _RAISED.match(above):
        fields["raised"] = above.strip()
    wrapper = WRAPPERS.search(name) is not None or TEARDOWN.search(message) is not None
    return Evidence(kind, "symptom" if wrapper else "end", line, fields)


def _frames(plain: Sequence[str]) -> list[str]:
    """The calls of a traceback's lines."""
    return [f"{frame['file']}:{frame['line']} {frame['name']}" for each in plain if (frame := _FRAME.match(each))]


def _above(plain: Sequence[str]) -> str:
    """The source line at the end of a traceback's lines."""
    return next((each for each in reversed(plain) if not _MARKERS.match(each)), "")
