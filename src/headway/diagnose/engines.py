"""Whether an end is an inference engine's own, by the code that it is in, and what to change in that engine."""

import re
from collections.abc import Iterator

from msgspec.structs import replace

from headway.diagnose.applied import spelled
from headway.diagnose.case import Case
from headway.diagnose.evidence import Evidence
from headway.diagnose.frameworks import flags
from headway.diagnose.rules.rule import Advice
from headway.diagnose.seen import Seen, without_environment
from headway.diagnose.text import process_of

VLLM = (
    r"[/\\]vllm[/\\]|\bEngineCore|VllmWorker|\bpynccl|warming up sampler|gpu_memory_utilization|"
    r"desired GPU memory utilization"
)
SGLANG = r"[/\\]sglang[/\\]|sglang::|--mem-fraction-static|\bScheduler hit an exception"
_CODE = re.compile(
    rf"(?P<vllm>{VLLM})|(?P<sglang>{SGLANG})|"
    r"(?P<trainer>[/\\](?:verl|slime|miles|trl|openrlhf|megatron|deepspeed|nemo_rl|skyrl_train|areal)[/\\])"
)
START = (
    r"warming up sampler|_dummy_(?:sampler_)?run\b|profile_run|determine_(?:num_)?available_\w+|compile_or_warm_up|"
    r"initialize_(?:kv_)?cache|kernel_warmup|init_device|\bload_model\b|init_memory_pool|MHATokenToKVPool|"
    r"allocate_kv|alloc_memory_pool"
)
"""Calls by which an engine makes itself ready: weights, a trial run, the cache, its first samples."""
OWN_WORK = ("device-allocation-failure", "python-exception", "engine-exit", "native-crash")
"""Ends that a process brings about by its own calls."""
NEAR = 40
"""Lines around an event in which its code is looked for, where its own traceback names none."""


def engine_of(case: Case) -> str:
    """Which engine's code an end is in: by its innermost call in an engine or a trainer, else by its own words, else
    by a call of the same process near to it. Empty where it is in none."""
    event = case.event
    if event is None or case.mechanism not in OWN_WORK:
        return ""
    for text in (*reversed(case.frames), event.place.text, *_calls_near(case)):
        if (owner := owner_of(text)) is not None:
            return "" if owner == "trainer" else owner
    return ""


def owner_of(text: str) -> str | None:
    """Whose code a call or a message is: "vllm", "sglang" or "trainer", by the innermost folder; None of other code.
    An environment may be called after any of them.

    >>> owner_of("/envs/verl/lib/python3.10/site-packages/vllm/v1/worker/gpu_worker.py:9 load_model")
    'vllm'
    >>> owner_of("/envs/vllm/lib/python3.10/site-packages/torch/nn/modules/module.py:1 forward")
    """
    found = [match.lastgroup for match in _CODE.finditer(without_environment(text))]
    return found[-1] if found else None


def _calls_near(case: Case) -> Iterator[str]:
    """Lines of calls around an event whose own traceback has none, the nearest first."""
    if case.event is None or case.frames:
        return
    at, pid = case.event.place.line, case.event.line.process.pid
    for place in sorted(case.around, key=lambda place: abs(place.line - at)):
        same = pid is None or process_of(place.text).pid == pid
        if abs(place.line - at) <= NEAR and same and 'File "' in place.text:
            yield place.text


def at_start(case: Case) -> bool:
    """Whether an engine was making itself ready."""
    if case.event is None or not engine_of(case):
        return False
    calls = (case.event.place.text, *case.frames, *_calls_near(case))
    return any(owner_of(call) in ("vllm", "sglang") and re.search(START, call) for call in calls)


def engine_advice(engine: str, seen: Seen) -> tuple[Advice, ...]:
    """What gives an engine room on its device: its share, its requests, its graphs. In the flags of the trainer that
    is seen, else in the engine's own.

    >>> engine_advice("sglang", Seen("slime"))[0].text
    'lower --sglang-mem-fraction-static: weights and KV cache take that share, and all else needs the rest'
    """
    seen = replace(seen, engine=engine)
    share, requests, graphs = (spelled(f"engine-{name}", seen) for name in ("share", "requests", "graphs"))
    return (
        Advice(
            f"lower {share or 'the share of the device that the engine takes'}: "
            "weights and KV cache take that share, and all else needs the rest",
            "room for activations, samples, graphs and NCCL", "a smaller cache: fewer requests at once",
            "engine-share", flag=share,
        ),
        Advice(
            f"lower {requests or 'the number of requests and of tokens that the engine takes at once'}",
            "smaller activations and logits", "less throughput", "engine-requests", flag=requests,
        ),
        Advice(
            f"fewer CUDA graphs{graphs and f' ({graphs})'}", "less memory beside the cache", "slower decoding",
            "engine-graphs", flag=graphs,
        ),
    )  # fmt: skip


def share_advice(tenant: Evidence, seen: Seen) -> tuple[Advice, ...]:
    """The largest share that what was free at an engine's start allows; none where the line gives no numbers."""
    free, total = tenant.number("free"), tenant.number("total")
    if free is None or not total:
        return ()
    share = int(100 * free / total) / 100
    flag = next(iter(flags("engine-share", seen.framework, seen.engine or "vllm")), "the engine's share")
    text = f"lower {flag} to {share:g} at most, or free the device: {free:g} of {total:g} GiB are free"
    return (
        Advice(
            text,
            "the engine starts, if its weights fit into that share",
            "a smaller cache",
            "engine-share",
            flag=flag,
        ),
    )


LATE = (
    r"illegal memory access|IllegalAddress|misaligned address|launch failure|illegal instruction|"
    r"device-side assert|Assertion `"
)
"""Faults of a kernel, which a later call reports."""


def is_late(case: Case) -> bool:
    """Whether an end is a kernel's fault, so that the call that it shows may be a later one."""
    if case.event is None or case.mechanism not in ("python-exception", "engine-exit", "native-crash"):
        return False
    if case.mechanism != "python-exception":
        fault = case.words("cuda-error", LATE)
        return fault is not None and fault.place in case.around
    said = f"{case.event.fields.get('message', '')} {case.event.place.text}"
    return re.search(LATE, said) is not None


def late_advice(engine: str, seen: Seen) -> tuple[Advice, ...]:
    """What to do about a kernel's fault, whose traceback shows a later call."""
    eager = next(iter(flags("engine-graphs", seen.framework, engine)), "").split(", or ")[-1]
    without = f", the engine without CUDA graphs{eager and f' ({eager})'}" if engine else ""
    blocking, checker = "CUDA_LAUNCH_BLOCKING=1", "; compute-sanitizer names it"
    if seen.on("amd"):
        blocking, checker = "AMD_SERIALIZE_KERNEL=3", ""
    return (
        Advice(
            f"run once with {blocking}{without}",
            "the traceback then shows the call that failed; the one shown now may be a later one", "slow",
        ),
        Advice(
            f"try another version or attention backend of the library whose kernel that is{checker}",
            "tells a library's defect from wrong indices of the run", "time",
        ),
    )  # fmt: skip


PAGE_CACHE = Advice(
    "free -h: where buff/cache is large, drop it right before the start "
    "(sync; echo 3 | sudo tee /proc/sys/vm/drop_caches); else look for what runs beside it",
    "on unified memory the device's free memory leaves out the page cache, which weights and files that were "
    "read fill",
    "files are read from disk again",
)
"""What makes free memory small on a machine whose CPU and GPU share one: cudaMemGetInfo's free is MemFree there, and
`available`, which counts the cache as free, does not move."""
