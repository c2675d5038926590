"""An uncaught exception of Python."""

from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule

_NOT = ("SystemExit",)


def _error(evidence: Evidence) -> Grade | None:
    return None if evidence.fields.get("type", "").split(".")[-1] in _NOT else "supported"


def _traceback(evidence: Evidence) -> Grade | None:
    return None if evidence.fields.get("type", "").split(".")[-1] in _NOT else "proven"


def _device(evidence: Evidence) -> Grade | None:
    return None if "NVRM" in evidence.place.text or "Xid" in evidence.place.text else "supported"


def _limit(evidence: Evidence) -> Grade:
    text = evidence.place.text
    return (
        "supported"
        if any(word in text for word in ("Error", "Errno", "kind:", "Exception", "Writer", "RuntimeError"))
        else "open"
    )


RULE = Rule(
    name="python-exception",
    level="mechanism",
    tier=2,
    sees="A traceback, or the last line of one, whose exception is not another process's death.",
    why="Code raised and nobody caught it; Ray passes it on as RayTaskError, and a constructor's as an actor's "
        "creation error.",
    sure="A traceback proves the exception; that it ended the run is supported by what follows. The first one is "
        "the root, "
    "later ones are of processes that waited for it.",
    look_alikes="RayActorError, EngineDeadError, ChildFailedError and their like report another process's end.",
    example='Traceback (most recent call last):\n  File "/app/reward.py", line 9, in score\n    return '
        'd["answer"]\nKeyError: \'answer\'',
    near_miss="ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    refuters=("the run went on for steps after it",),
    advice=(Advice("mend what the last frame of your own code shows", "the exception does not come", "none"),),
    settle=(settle.EARLIER,),
    ends={
        "python-traceback": _traceback, "python-error": _error, "cuda-error": "supported", "nccl-error": "supported",
        "ray-creation-error": "supported", "ray-runtime-env": "supported", "ray-object-store": "supported",
        "disk-full": _limit, "file-limit": _limit, "thread-limit": _limit, "gpu-hardware": _device,
        "store-timeout": "supported", "shm-insufficient": _limit,
    },
)  # fmt: skip
