"""Whether an end is an inference engine's own, by the code that it is in, and what to change in that engine."""

import re
from collections.abc import Iterator

from headway.diagnose.case import Case
from headway.diagnose.evidence import Evidence
from headway.diagnose.rules.rule import Advice
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
_ENVIRONMENT = re.compile(r"[^\s\"]*(?:-packages|/lib/python3(?:\.\d+)?)/")
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
    found = [match.lastgroup for match in _CODE.finditer(_ENVIRONMENT.sub("/", text))]
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


PREFIXED = ("slime", "miles")
"""Systems whose flags for SGLang begin with --sglang-."""
_SHARE = {"vllm": "gpu_memory_utilization", "sglang": "--mem-fraction-static"}
_REQUESTS = {
    "vllm": "max_num_seqs (the sampler's logits are that many x vocabulary) and max_num_batched_tokens",
    "sglang": "--max-running-requests and --chunked-prefill-size",
}
_GRAPHS = {
    "vllm": "cudagraph_capture_sizes, or enforce_eager=True",
    "sglang": "--cuda-graph-max-bs, or --disable-cuda-graph",
}


def engine_advice(engine: str, system: str = "") -> tuple[Advice, ...]:
    """What gives an engine room on its device, in its own settings: its share, its requests, its graphs. With the
    prefix of a `system` that passes them on under one.

    >>> engine_advice("sglang", "slime")[0].text
    'lower --sglang-mem-fraction-static: weights and KV cache take that share, and all else needs the rest'
    """
    prefix = "--sglang-" if system in PREFIXED else "--"
    share, requests, graphs = (name[engine].replace("--", prefix) for name in (_SHARE, _REQUESTS, _GRAPHS))
    return (
        Advice(
            f"lower {share}: weights and KV cache take that share, and all else needs the rest",
            "room for activations, samples, graphs and NCCL",
            "a smaller cache: fewer requests at once",
        ),
        Advice(f"lower {requests}", "smaller activations and logits", "less throughput"),
        Advice(f"fewer CUDA graphs ({graphs})", "less memory beside the cache", "slower decoding"),
    )


def share_advice(tenant: Evidence) -> tuple[Advice, ...]:
    """The largest share that what was free at an engine's start allows; none where the line gives no numbers."""
    free, total = tenant.number("free"), tenant.number("total")
    if free is None or not total:
        return ()
    share = int(100 * free / total) / 100
    text = (
        f"lower gpu_memory_utilization to {share:g} at most, or free the device: {free:g} of {total:g} GiB are free"
    )
    return (Advice(text, "the engine starts, if its weights fit into that share", "a smaller cache"),)


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


def late_advice(engine: str) -> tuple[Advice, ...]:
    """What to do about a kernel's fault, whose traceback shows a later call."""
    eager = f", the engine without graphs ({_GRAPHS[engine].split(', or ')[1]})" if engine else ""
    return (
        Advice(
            f"run once with CUDA_LAUNCH_BLOCKING=1{eager}",
            "the traceback then shows the call that failed; the one shown now may be a later one",
            "slow",
        ),
        Advice(
            "try another version or attention backend of the library whose kernel that is; compute-sanitizer "
            "names it",
            "tells a library's defect from wrong indices of the run",
            "time",
        ),
    )


PAGE_CACHE = Advice(
    "free -h: where buff/cache is large, drop it right before the start "
    "(sync; echo 3 | sudo tee /proc/sys/vm/drop_caches); else look for what runs beside it",
    "on unified memory the device's free memory leaves out the page cache, which weights and files that were "
    "read fill",
    "files are read from disk again",
)
"""What makes free memory small on a machine whose CPU and GPU share one: cudaMemGetInfo's free is MemFree there, and
`available`, which counts the cache as free, does not move."""
