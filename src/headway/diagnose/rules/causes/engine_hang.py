"""The engine does not answer."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    if case.mechanism not in {"engine-exit", "hang"}:
        return None
    found = case.first("engine-hang")
    if found is not None:
        return Claim("supported", "a health check or watchdog waited in vain for a live engine", (found.place,))
    call = case.first("engine-rpc-timeout")
    return (
        Claim("open", "a worker did not answer a call in time; it may also have died", (call.place,))
        if call
        else None
    )


RULE = Rule(
    name="engine-hang",
    level="cause",
    sees="Watchdog timeouts, health checks without an answer, RPC calls that time out.",
    why="A collective inside the engine waits for a rank, a kernel runs without end, or a queue is stuck.",
    sure="Supported by a watchdog; open for a call that timed out.",
    look_alikes="An EngineDeadError alone is an engine that ended.",
    example="[2026-03-01 10:00:00] Health check failed. Server couldn't get a response from detokenizer for last 20 "
    "seconds.",
    near_miss="EngineDeadError: EngineCore encountered an issue.",
    advice=(
        Advice("py-spy dump --pid of every engine process while it hangs", "shows the wait", "none"),
        Advice(
            "raise the watchdog's time only for known slow steps",
            "no false end",
            "a true hang is seen later",
            "watchdog",
        ),
    ),
    settle=(settle.STDERR,),
    find=_find,
)
