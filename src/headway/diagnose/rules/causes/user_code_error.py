"""The user's own code raised."""

import re

from headway.diagnose.case import Case
from headway.diagnose.numbers import BEYOND, format_request
from headway.diagnose.readers.tracebacks import LIBRARY, raised_by_user
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule
from headway.units import format_bytes

OWN = re.compile(
    r"(?:Key|Type|Value|Attribute|Index|Name|ZeroDivision|Assertion|UnboundLocal|Unicode\\w*|JSONDecode|"
    r"Lookup|NotImplemented)Error$"
)


SHAPES = Advice(
    "print the shapes and the lengths before that line, on the first rank that failed",
    "shows the one that is wrong",
    "none: no share, cap or smaller batch makes such a request fit",
)


def _find(case: Case) -> Claim | None:
    event, last = case.event, case.frames[-1] if case.frames else ""
    if event is None:
        return None
    own = bool(last) and LIBRARY.search(last) is None
    if case.mechanism in ("device-allocation-failure", "host-allocation-failure"):
        return _impossible(case, last if own else "")
    if case.mechanism != "python-exception" or not own:
        return None
    if raised_by_user(event):
        because = f"the code raises this text itself, and that code is no library: {last}"
        return Claim("supported", because, (event.place,))
    if not OWN.search(event.fields.get("type", "")):
        return None
    return Claim("supported", f"the last call is in code that is no library: {last}", (event.place,))


def _impossible(case: Case, own: str) -> Claim | None:
    """A request that no machine can serve, or one of the user's own code that is larger than the whole device."""
    found = case.refusal
    if not found.impossible or found.asked is None or case.event is None or not (own or found.asked >= BEYOND):
        return None
    more = "more than any machine has"
    if found.total is not None:
        more = f"more than the whole device holds ({format_bytes(found.total)})"
    where = f", in {own}" if own else ""
    because = f"{format_request(found.asked)} were asked for, {more}: a wrong shape, length or index{where}"
    shown = case.near(re.escape(own.rpartition(":")[0])) if own else None
    return Claim("supported", because, (case.event.place, *((shown,) if shown else ())), (SHAPES,))


RULE = Rule(
    name="user-code-error",
    level="cause",
    sees="A traceback whose last frame is in no installed library and no framework: a reward, a generation function,"
    " a data set. Or a request for memory that no machine can serve, or that is larger than the whole device and "
    "comes "
    "from such code.",
    why="A missing key, a wrong type, an answer that the code did not expect; a tensor whose shape is read from "
    "one that "
    "was never filled.",
    sure="Supported by the frame's path, by the code's own raise, or by the size alone where it is beyond any "
    "machine.",
    look_alikes="A text about memory that the user's own code raises is no refused request. The same exception "
    "inside a framework may be its defect.",
    example='Traceback (most recent call last):\n  File "/home/me/reward.py", line 9, in score\n    return '
    'd["answer"]\n'
    "KeyError: 'answer'",
    near_miss='Traceback (most recent call last):\n  File "/usr/lib/python3.11/site-packages/vllm/engine.py", '
    "line 9, "
    "in "
    "step\n    return d[\"answer\"]\nKeyError: 'answer'",
    advice=(
        Advice("mend the frame's line; try the function on stored samples before the run", "no exception", "none"),
    ),
    settle=(settle.EARLIER,),
    find=_find,
)
