"""Losses, gradients or probabilities are not finite."""

import re

from headway.diagnose.case import Case
from headway.diagnose.causes import ASKED, UNKNOWN
from headway.diagnose.evidence import Evidence
from headway.diagnose.incidents import is_interrupt
from headway.diagnose.readers.numerics import METRIC, NOT_FINITE
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule
from headway.guard.steps import latest_step

RAISES = ("python-exception", "engine-exit", "native-crash")
NEAR = 60
"""Lines around an end in which a kernel's or an engine's own word on it stands."""
LATE = r"device-side assert|AcceleratorError|CUDA error"
_HALF = re.compile(
    r"--fp16\b(?![=\s]+(?:false|0))|\bfloat16\b|\bfp16['\"]?\s*[:=]\s*['\"]?true|dtype['\"]?\s*[:=]\s*['\"]?(?:fp16|half)\b|"
    r"loss.scal(?:e|er|ing)\b", re.IGNORECASE,
)  # fmt: skip
_WIDE = re.compile(r"\bbf16\b|\bbfloat16\b", re.IGNORECASE)
_METRIC, _NOT_FINITE = re.compile(METRIC, re.IGNORECASE), re.compile(NOT_FINITE, re.IGNORECASE)
UNSHOWN = "what made them so is not shown: the changes are to be tried"


def _find(case: Case) -> Claim | None:
    said = case.first("not-finite", "loss-scale")
    if case.mechanism in RAISES and case.event is not None and not is_interrupt(case.event):
        own = next((each for each in case.evidence if _is_own(each, case, case.event)), None)
        return None if own is None else _raised(case, own)
    if case.mechanism not in (UNKNOWN, ASKED) and not (case.event is not None and is_interrupt(case.event)):
        return None
    first = case.first("nan-metric")
    if first is None:
        if said is None:
            return None
        return Claim(
            "open", "a line says that numbers are not finite; whether the run went on is not shown", (said.place,)
        )
    lasting = _last_is_not_finite(case)
    if lasting is False:
        return None
    places = (first.place, *(() if said is None else (said.place,)))
    because = f"{_first(first)}{' and it was so to the end' if lasting else ''}; {UNSHOWN}"
    return Claim("supported" if lasting else "open", because, places, _advice(case, sampling=False))


def _is_own(each: Evidence, case: Case, event: Evidence) -> bool:
    """Whether a word on numbers is the event's own: its message, or what a kernel or an engine says beside it."""
    if each.kind not in ("not-finite", "loss-scale"):
        return False
    message = event.fields.get("message", "")
    if each.place == event.place or (message and message[:80] in each.place.text):
        return True
    late = re.search(LATE, f"{message} {event.place.text}") is not None or case.mechanism != "python-exception"
    same = each.place.file == event.place.file and abs(each.place.line - event.place.line) <= NEAR
    return late and same


def _raised(case: Case, own: Evidence) -> Claim:
    """The claim where the end itself says that numbers are not finite, with the first metric that was none."""
    sampling = "sampling" in own.fields
    what = "the probabilities to sample from held inf, nan or a negative number" if sampling else ""
    what = what or ("fp16 gradients overflowed at every loss scale" if own.kind == "loss-scale" else "")
    what = what or "the run itself found a number that is not finite, and ended"
    first = case.first("nan-metric")
    earlier = first is not None and first.line.order <= own.line.order
    more = f"; {_first(first)}" if first is not None and earlier else ""
    places = (own.place, *((first.place,) if first is not None and earlier else ()))
    return Claim("proven", f"{what}{more}; {UNSHOWN}", places, _advice(case, sampling=sampling))


def _first(metric: Evidence) -> str:
    """Which metric was not finite first, and where."""
    step = latest_step(metric.place.text)
    step = metric.line.step if step is None else step
    at = "" if step is None else f"step {step}, "
    name = " ".join(metric.fields["name"].split())
    return f"{name} was {metric.fields['value'].lower()} first at {at}{metric.place}"


def _last_is_not_finite(case: Case) -> bool | None:
    """Whether the last loss or norm that the log shows is not finite; None where its last lines show none."""
    shown = [text for text in case.tail if _METRIC.search(text)]
    if not shown:
        return None
    return _NOT_FINITE.search(shown[-1]) is not None


def _advice(case: Case, *, sampling: bool) -> tuple[Advice, ...]:
    """What to try for this case: other precision where it may be fp16, the sampling where that met the numbers."""
    text = "\n".join((case.seen.text, case.text))
    half = _HALF.search(text) is not None
    found = []
    if half or not _WIDE.search(text):
        seen = "the log shows fp16" if half else "where fp16 is in use"
        found.append(
            Advice(f"bf16 in place of fp16 ({seen})", "fp32's range: nothing overflows at 65,504", "less exact")
        )
    if sampling:
        found.append(
            Advice(
                "sample at a temperature that is not near 0, and look whether a mask or top-k leaves a token at all",
                "logits / temperature stays finite, and some probability is above 0", "other samples",
            )
        )  # fmt: skip
    return tuple(found)


RULE = Rule(
    name="numerics",
    level="cause",
    sees="'probability tensor contains either `inf`, `nan` or element < 0', as an exception or as a kernel's "
    "assertion beside 'device-side assert triggered'; 'found NaN in ...', 'Loss is nan', a loss scale at its "
    "minimum; a loss or grad_norm that is nan or inf to the end of the log.",
    why="One step's gradient overflowed or divided by 0 and the weights took it: a learning rate that is too high, "
    "fp16's range, a ratio or a logarithm of a far too small probability, an empty group of answers. From then on "
    "all numbers are nan, and sampling is where it is noticed.",
    sure="Proven where the end itself says it, as to the numbers; supported where the last loss of a log is not "
    "finite. What made them so no line says: the changes are suggestions.",
    look_alikes="A grad_norm of inf at some steps with fp16 is usual: the step is left out and the scale halved. A "
    "nan of a reward's or an evaluation's mean is an empty group. Another assertion of a kernel is another fault.",
    example='Traceback (most recent call last):\n  File "/lib/python3.11/site-packages/transformers/utils.py", '
    "line 3, in _sample\n    next_tokens = torch.multinomial(probs, num_samples=1)\nRuntimeError: probability tensor "
    "contains either `inf`, `nan` or element < 0",
    near_miss="{'loss': 0.7, 'grad_norm': inf, 'reward_std': nan}\n"
    "{'loss': 0.6, 'grad_norm': 1.3, 'reward_std': 0.1}",
    refuters=("a loss after it that is finite",),
    advice=(
        Advice(
            "look at the step where loss or grad_norm was first not finite, and go on from a checkpoint before it",
            "the batch, its longest answer or its largest ratio shows which number it was; later weights are nan",
            "steps are done again",
        ),
        Advice("a lower learning rate, or a longer warm-up", "smaller steps stay in the range", "slower learning"),
        Advice(
            "clip gradients by their norm (1.0), and leave out a step whose norm is not finite",
            "one bad batch does not spoil the weights", "hides a batch that is wrong",
        ),
    ),
    settle=(settle.ANOMALY,),
    find=_find,
)  # fmt: skip
