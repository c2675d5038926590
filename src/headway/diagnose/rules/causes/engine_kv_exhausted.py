"""Requests need more cache than there is."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("engine-kv")
    if found is None or case.mechanism not in {"engine-exit", "python-exception"}:
        return None
    return Claim("proven", "the engine's own pool had no slots left for the requests in flight", (found.place,))


RULE = Rule(
    name="engine-kv-exhausted",
    level="cause",
    sees="'Decode out of memory. Try to lower your batch size', 'Out of memory even after retracting all other "
    "requests'.",
    why="Requests in flight grow by a token each; with pages of many tokens each request takes a whole page at a "
    "border.",
    sure="Proven by the engine's words: it is its pool, not the device.",
    look_alikes="'KV cache pool is full. Retract requests.' is normal.",
    example="Decode out of memory. Try to lower your batch size. Try to allocate 148 tokens. Available tokens: 2048",
    near_miss="KV cache pool is full. Retract requests. #retracted_reqs: 3",
    advice=(
        Advice(
            "fewer requests at once, or shorter answers",
            "the pool holds them",
            "slower rollouts",
            "engine-requests",
        ),
        Advice(
            "a larger share of the device for the engine",
            "a larger pool",
            "room of the trainer",
            "raise-engine-share",
        ),
    ),
    settle=(settle.STDERR,),
    find=_find,
)
