"""Expandable segments of torch's allocator where memory is released by the saver or by vLLM's sleep."""

import re
from collections.abc import Iterator

from headway.foreign.lint.rule import SLIME, Rule, Sighting, Subject
from headway.foreign.shell.values import Origin, Word

NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
ON = re.compile(r"expandable_segments\s*:\s*true", re.IGNORECASE)
SAVER = "torch_memory_saver refuses expandable segments"
SLEEP = "vLLM's sleep mode asserts that expandable segments are off"


def find(subject: Subject) -> Iterator[Sighting]:
    """The allocator's setting in the environment of a run that releases memory."""
    told = _releases(subject)
    if not told:
        return
    for at in dict.fromkeys(_places(subject)):
        yield Sighting(f"expandable_segments:True, and {told}", at)


def _places(subject: Subject) -> Iterator[Origin | None]:
    for name in NAMES:
        value = subject.variables.get(name)
        if name in subject.script.exports and isinstance(value, Word) and ON.search(value.shown):
            yield value.at
    for command in subject.commands:
        words = [item for item in command.argv if isinstance(item, Word)]
        words += [value for name, value in command.environment if name in NAMES and ON.search(value.shown)]
        for word in words:
            named = any(name in word.shown[:20_000] for name in NAMES) or word not in command.argv
            if named and ON.search(word.shown[:20_000]):
                yield word.at or command.at


def _releases(subject: Subject) -> str:
    """What in the run releases memory in a way that these segments do not allow; empty where nothing does."""
    colocated = subject.found.value("colocate") is True
    if subject.system in SLIME:
        offload = subject.last("offload", "offload-train", "offload-rollout")
        return f"{SAVER} (--colocate offloads through it)" if colocated or offload is not None else ""
    engine = subject.found.value("engine")
    if subject.system == "verl" and colocated and engine == "sglang":
        return f"{SAVER} (SGLang releases its memory through it)"
    sleeping = {
        "openrlhf": ("vllm_enable_sleep", "vllm.enable_sleep"), "trl": ("vllm_enable_sleep_mode",),
    }.get(subject.system, ())  # fmt: skip
    asked = subject.last(*sleeping) if sleeping else None
    if asked is not None and (not asked.values or (asked.text or "").lower() in ("true", "1")):
        return f"{SLEEP} (--{asked.name})"
    return ""


RULE = Rule(
    name="expandable-segments",
    severity="error",
    title="expandable segments under a memory saver",
    sees="`PYTORCH_CUDA_ALLOC_CONF` has `expandable_segments:True`, and the run is colocated with slime, Miles or "
    "verl on SGLang, or vLLM sleeps (`--vllm_enable_sleep`, `--vllm_enable_sleep_mode`).",
    why="the memory saver raises `TorchMemorySaver is disabled for the current process because expandable_segments "
    "is not supported yet`: the engine does not start, or nothing is released between the phases",
    example="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    "python3 train.py --rollout-batch-size 8 --colocate",
    instead="leave the setting out of what the engine sees; Miles's --train-env-vars sets it for the trainer alone",
    near_miss="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    "python3 train_async.py --rollout-batch-size 8 --rollout-num-gpus 4",
    not_this="trainer and engine on devices of their own release nothing, and the setting helps there. verl with "
    "vLLM switches the segments off around its weight update by itself.",
    find=find,
)
