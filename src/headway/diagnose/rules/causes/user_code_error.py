"""The user's own code raised."""

import re

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule

LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python|<frozen|/(?:slime|miles|verl|trl|openrlhf|megatron|Megatron-LM|"
    r"sglang|vllm|ray|torch|"
    r"transformers|nemo_rl|deepspeed)/",
    re.IGNORECASE,
)
OWN = re.compile(
    r"(?:Key|Type|Value|Attribute|Index|Name|ZeroDivision|Assertion|UnboundLocal|Unicode\\w*|JSONDecode|"
    r"Lookup|NotImplemented)Error$"
)


def _find(case: Case) -> Claim | None:
    event = case.event
    if case.mechanism != "python-exception" or event is None or not event.fields.get("frames"):
        return None
    last = event.fields["frames"].split("\n")[-1]
    if LIBRARY.search(last) or not OWN.search(event.fields.get("type", "")):
        return None
    return Claim("supported", f"the last call is in code that is no library: {last}", (event.place,))


RULE = Rule(
    name="user-code-error",
    level="cause",
    sees="A traceback whose last frame is in no installed library and no framework: a reward, a generation function,"
    " a data set.",
    why="A missing key, a wrong type, an answer that the code did not expect.",
    sure="Supported by the frame's path.",
    look_alikes="The same exception inside a framework may be its defect.",
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
