"""Native code ended the process."""

from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule

_CRASHES = {"-11", "-6", "-7", "-4", "-8", "11", "6", "7", "4", "8"}


def _banner(evidence: Evidence) -> Grade:
    return "supported" if evidence.fields.get("name") or evidence.fields.get("code") else "proven"


def _terminate(evidence: Evidence) -> Grade | None:
    return None if "bad_alloc" in evidence.fields.get("what", "") else "proven"


def _code(evidence: Evidence) -> Grade | None:
    return "proven" if evidence.fields.get("code", evidence.fields.get("signal")) in _CRASHES else None


def _loader(evidence: Evidence) -> Grade | None:
    signal = evidence.fields.get("signal", "").lower()
    return "proven" if any(word in signal for word in ("bus", "segmentation", "abort", "illegal")) else None


def _spawned(evidence: Evidence) -> Grade | None:
    return "proven" if evidence.fields.get("name") in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE") else None


def _threads(evidence: Evidence) -> Grade | None:
    return "supported" if "system:" in evidence.place.text or "what():" in evidence.place.text else None


RULE = Rule(
    name="native-crash",
    level="mechanism",
    tier=1,
    sees="'*** SIGSEGV received', 'Fatal Python error', 'Segmentation fault', 'Bus error', 'terminate called', "
        "exit code 139, 134, 135.",
    why="A library in C++ or CUDA touched memory that is not its own, wrote to a full tmpfs (bus error), or gave "
        "up (abort).",
    sure="The banner proves the signal; the frames below it name the library. A watchdog's abort or a "
        "std::bad_alloc is "
    "the end of another story and is reported as that.",
    look_alikes="Ray's constant list names SIGSEGV at every abrupt end.",
    example="*** SIGSEGV received at time=1764412345 on cpu 3 ***",
    near_miss="(3) the worker is SIGSEGV or another unexpected error. There are some potential root causes.",
    refuters=("no banner in the worker's error output",),
    advice=(
        Advice("run once with PYTHONFAULTHANDLER=1 and keep core files", "names the call", "disk space"),
        Advice("compare library versions with a set that is known to work", "finds a mismatch", "time"),
    ),
    settle=(settle.STDERR, settle.DMESG),
    ends={
        "crash-signal": _banner, "terminate-called": _terminate, "elastic-exit": _code, "loader-killed": _loader,
        "engine-scheduler-code": _code, "torch-spawn-signal": _spawned, "thread-limit": _threads,
        "box-signal": _code,
    },
)  # fmt: skip
