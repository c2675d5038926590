"""The inference engine ended."""

from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule


def _hang(evidence: Evidence) -> Grade | None:
    return "supported" if "watchdog" in evidence.place.text.lower() else None


RULE = Rule(
    name="engine-exit",
    level="mechanism",
    tier=2,
    sees="'Scheduler hit an exception', EngineDeadError, 'EngineCore encountered an issue', 'Not enough memory "
        "... mem-fraction-static'.",
    why="The engine's scheduler or core process raised or was ended, and everything that waits for it fails.",
    sure="Proven by the engine's own lines; EngineDeadError and its like only see it from outside.",
    look_alikes="'KV cache pool is full. Retract requests.' is normal back-pressure.",
    example="vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for "
        "the root cause.",
    near_miss="KV cache pool is full. Retract requests. #retracted_reqs: 3",
    refuters=("the engine's server answers after that time",),
    advice=(Advice("read the engine's own log before the first EngineDead line", "the reason stands there", "none"),),
    settle=(settle.EARLIER, settle.STDERR),
    ends={
        "engine-exception": "proven", "engine-dead": "supported", "engine-rpc-timeout": "supported",
        "engine-no-room": "proven", "engine-kv": "proven", "engine-hang": _hang,
    },
)  # fmt: skip
