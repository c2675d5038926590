"""A setting is wrong."""

import re

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule
from headway.units import format_bytes

SURE = (
    r"divisible|unrecognized arguments|invalid choice|Config(?:Attribute|Key|Type)Error|MissingMandatory|"
    r"not supported (?:with|when|for|together)|"
    r"cannot be used (?:with|together)|required (?:argument|when)|invalid device ordinal|"
    r"No CUDA GPUs are available|validation error|"
    r"must be (?:set|specified|less|greater|smaller|larger|at least|>=|<=|>|<|one of|a multiple)|"
    r"RuntimeEnvSetup|set up runtime environment|"
    r"(?:greater|larger|longer) than the (?:derived|maximum|max)|maximum context length|"
    r"world[_ ]size .*(?:not|must)|HFValidationError|Repo id must|"
    r"not enough GPUs|exceeds the number of available|mutually exclusive|unexpected keyword argument"
)
MAYBE = (
    r"No such file or directory|FileNotFound|RepositoryNotFound|size mismatch|Address already in use|"
    r"EADDRINUSE|is not a valid"
)
ERROR = re.compile(r"Error|error|Exception|assert|ordinal|usage:")


def _find(case: Case) -> Claim | None:
    if case.mechanism == "device-allocation-failure":
        return _allowance(case)
    if case.mechanism not in {"python-exception", "engine-exit", "python-exit"} or case.event is None:
        return None
    place = case.near(SURE)
    if place is not None and (ERROR.search(place.text) or case.event.place.line == place.line):
        return Claim("supported", "the message names a setting or a check of settings", (place,))
    place = case.near(MAYBE)
    return Claim("open", "the message may come from a setting", (place,)) if place else None


def _allowance(case: Case) -> Claim | None:
    """A share of the device that the run set as torch's limit, with room beside it."""
    found = case.refusal
    if case.event is not None and "per_process_memory_fraction" in case.event.place.text:
        return Claim("supported", "the message names the limit that the run set to torch", (case.event.place,))
    if found.allowed is None or found.asked is None or case.event is None or (found.free or 0) < found.asked:
        return None
    because = (
        f"torch may use {format_bytes(found.allowed)} here (per_process_memory_fraction), and the device has "
        f"{format_bytes(found.free or 0)} free"
    )
    return Claim("supported", because, (case.event.place,))


RULE = Rule(
    name="configuration-error",
    level="cause",
    sees="'must be divisible', 'unrecognized arguments', unknown keys, 'is not supported with', an invalid device; "
    "a refused request above what torch is allowed ('800.55 MiB allowed;') on a device with room.",
    why="Two settings contradict each other, a name is misspelt, a path is wrong.",
    sure="Supported by the check's own message; a missing file is open.",
    look_alikes="A size mismatch deep in a model may be a defect.",
    example="AssertionError: num_attention_heads (28) must be divisible by tensor model parallel size (8)",
    near_miss="KeyError: 'answer'",
    advice=(Advice("check before the run: headway plan RUN", "contradictions are shown at once", "none"),),
    settle=(settle.EARLIER,),
    find=_find,
)
