"""Advice and questions as they hold where a run was: with its trainer's own flags, and of platforms that are seen."""

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from headway.diagnose.frameworks import FRAMEWORKS, flags
from headway.diagnose.rules.rule import Advice, Settle
from headway.diagnose.seen import Seen

HALVED = ("fewer-tokens", "smaller-batch", "engine-requests", "sync-bucket")
"""Changes that are tried with half of the value."""
SWITCHES = ("recompute", "chunked-logprobs", "balance", "save-async", "engine-graphs")
"""Changes that are made once: what is on needs no advice."""
SHARE = 0.1
"""By how much an engine's share is changed at first."""
_SWITCH = re.compile(r"(?P<name>[\w.+-]+)(?: ?[=:] ?| )(?P<value>[\w\"]+)")
_VALUE = (
    r"['\"]?(?:\s*[=:]\s*|\s+|\s*\.{3,}\s*)['\"]?"
    r"(?P<value>-?\d+(?:\.\d+)?(?![\w.])|true\b|false\b|full\b|selective\b|unsloth\b)"
)
_ALLOCATOR = re.compile(r"\bPYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF\b")
_NO_SEGMENTS = re.compile(
    r"torch_memory_saver|TorchMemorySaver|--colocate\b|--offload-train\b|enable_sleep|cumem_allocator|"
    r"(?<!setting )PYTORCH_\w*ALLOC_CONF['\"]?[=:] ?['\"]?[^\s'\"]*expandable_segments:True"
)
"""What releases device memory in a way that expandable segments do not allow, or that they are on already; torch's
hint to try setting them is neither."""
_GENERAL = ("batch_size", "save_freq")
"""Last parts of dotted names that other settings have too."""


def asked(settle: Sequence[Settle], seen: Seen) -> tuple[Settle, ...]:
    """What can be asked where the run was, each question once."""
    found = []
    for each in settle:
        question: Settle | None = each
        while question is not None and not seen.on(question.on):
            question = question.instead
        if question is not None:
            found.append(question)
    return tuple(dict.fromkeys(found))


def here(advice: Sequence[Advice], seen: Seen) -> tuple[Advice, ...]:
    """Advice for where the run was: none for a platform that is not there nor for what is on already, each change
    once, and what the trainer has no flag for after what it has one for."""
    found = [told for each in advice if seen.on(each.on) and (told := _told(each, seen)) is not None]
    if seen.framework:
        found.sort(key=lambda each: bool(each.change) and not each.flag)
    return merged(found)


def merged(advice: Sequence[Advice]) -> tuple[Advice, ...]:
    """Each change once: of two with the same words, key, effect or flag, the first.

    >>> [each.text for each in merged((Advice("a lower cap", "less memory", ""), Advice("cut", "less memory", "")))]
    ['a lower cap']
    """
    texts: set[str] = set()
    found = []
    for each, name in names(advice):
        own = {each.text, each.effect, each.change, name} - {""}
        if not own & texts:
            found.append(each)
        texts |= own
    return tuple(found)


def spelled(change: str, seen: Seen) -> str:
    """A change as the trainer that is seen writes it, with its value there and one to try where the log shows it;
    empty where it has no flag, or where that is unknown.

    >>> spelled("fewer-tokens", Seen("slime", text="--max-tokens-per-gpu 9216"))
    '--max-tokens-per-gpu 9216 -> 4608'
    >>> spelled("fewer-tokens", Seen("trl", text="per_device_train_batch_size=1, max_completion_length=4096"))
    'max_completion_length 4096 -> 2048'
    """
    if change == "allocator" and (named := _ALLOCATOR.search(seen.text)):
        return named[0]  # torch's own hint says it, by its version
    options = flags(change, seen.framework, seen.engine, seen.platforms)
    if re.search(r"use_dynamic_bsz['\"]?\s*[=:]\s*['\"]?false", seen.text, re.IGNORECASE):
        options = tuple(each for each in options if "max_token_len" not in each) or options
    options = tuple(each for each in options if _stands(each, seen.text))
    values = [(each, value_of(each, seen.text)) for each in options]
    for flag, value in values:
        if value is not None and " " not in flag and (after := _tried(change, value)):
            return f"{flag} {value} -> {after}"
    if not values or (change == "fewer-tokens" and values[0][1] is not None):
        return ""
    return options[0]


def value_of(flag: str, text: str) -> str | None:
    """The one value that a flag has in a text, whatever the form of the text; None where it has none or several.

    >>> value_of("--micro-batch-size", "micro_batch_size ........... 4"), value_of("a.lr", "a.lr=1 a.lr=2")
    ('4', None)
    """
    name = re.split(r"[ =:(\],]", flag.lstrip("-+["))[0]
    last = name.rpartition(".")[2]
    for each in dict.fromkeys((name, last)):
        if each in _GENERAL and each != name:
            continue
        found = re.finditer(rf"(?<![\w.])(?:--|\+\+)?{_either(each)}{_VALUE}", text, re.IGNORECASE)
        values = {match["value"] for match in found}
        if values:
            return values.pop() if len(values) == 1 else None
    return None


def _stands(option: str, text: str) -> bool:
    """Whether what is to be left out is there; True for what is not to be left out."""
    word, _, flag = option.partition(" ")
    return word != "without" or has_flag(flag.lstrip("-"), text)


def _either(name: str) -> str:
    """A pattern for a name with dashes or underscores."""
    return "[-_]".join(re.escape(part) for part in re.split("[-_]", name))


def _tried(change: str, before: str) -> str:
    """The value to try in place of one; empty where nothing is to be tried."""
    try:
        value = float(before)
    except ValueError:
        return ""
    if change in HALVED and value >= 2:
        return str(int(value) // 2)
    if change in ("engine-share", "raise-engine-share") and 0 < value < 1:
        after = round(value + (SHARE if change.startswith("raise") else -SHARE), 2)
        return f"{after:g}" if 0 < after < 1 else ""
    return str(int(value) * 2) if change == "timeout" and value >= 1 else ""


def _told(advice: Advice, seen: Seen) -> Advice | None:
    """Advice with the flag of the trainer that is seen; None where its settings show that it is so already, where it
    is about an engine and there is none, and for an allocator's setting that the run does not allow."""
    if not advice.change:
        return advice
    generates = seen.engine or not seen.framework or "engine-share" in FRAMEWORKS[seen.framework].flags
    if not generates and advice.change in ("engine-share", "engine-requests", "engine-graphs"):
        return None
    if advice.change == "allocator" and (seen.on("unified") or _NO_SEGMENTS.search(seen.text)):
        return None
    if _is_on(advice.change, flags(advice.change, seen.framework, seen.engine, seen.platforms), seen.text):
        return None
    flag = "" if advice.flag else spelled(advice.change, seen)
    return replace(advice, text=f"{advice.text} ({flag})", flag=flag) if flag else advice


def _is_on(change: str, options: Sequence[str], text: str) -> bool:
    """Whether what a change asks for is so already: its switch has the value that is asked for, or stands there."""
    if not options:
        return False
    switch = _SWITCH.match(options[0])
    if switch is not None:
        value = value_of(switch["name"], text)
        wanted = switch["value"].strip('"').lower()
        return wanted == value.lower() if value is not None else switch["name"].startswith("disable_")
    name = options[0].lstrip("-")
    if change not in SWITCHES or not re.fullmatch(r"[\w.-]+", name):
        return False
    value = value_of(name, text)
    if value is None:
        return options[0].startswith("--") and has_flag(name, text)
    return value.lower() not in ("false", "0", "-1")


def has_flag(name: str, text: str) -> bool:
    """Whether a text has a flag by its whole name.

    >>> has_flag("max-tokens-per-gpu", "--max-tokens-per-gpu 4096"), has_flag("max-len", "--max-length 7")
    (True, False)
    """
    return re.search(rf"(?<![\w.])(?:--)?{_either(name)}(?![\w-])", text) is not None


def names(advice: Sequence[Advice]) -> Iterator[tuple[Advice, str]]:
    """Each piece of advice with its flag's name alone; empty where it has none.

    >>> [name for _, name in names([Advice("cut", "", "", flag="--max-tokens-per-gpu 9216 -> 4608")])]
    ['max-tokens-per-gpu']
    """
    for each in advice:
        yield each, re.split(r"[ =:(\],]", each.flag.lstrip("-+["))[0]
