"""What SGLang and vLLM print, and how slime, Miles and verl speak of their engines.

Wordings: sglang/srt/managers/scheduler.py, tokenizer_manager.py and model_executor/; vllm/v1/engine/core_client.py,
executor/multiproc_executor.py, worker/gpu_worker.py and core/kv_cache_utils.py."""

from headway.diagnose.sign import Sign

SIGNS = (
    Sign(
        "engine-exception",
        "end",
        (
            "scheduler hit an exception",
            "enginecore hit an exception",
            "detokenizer hit an exception",
            "enginecore encountered a fatal error",
            "modelworker hit an exception",
            "tpmodelworker hit an exception",
            "enginecore failed to start",
        ),
        says="the engine raised; its traceback is the reason",
    ),
    Sign(
        "engine-sigquit",
        "symptom",
        ("received sigquit from a child", "child process failed"),
        says="the engine's parent was told that a child failed",
    ),
    Sign(
        "engine-dead",
        "end",
        (
            "enginedeaderror",
            "asyncenginedeaderror",
            "enginecore encountered an issue",
            "background loop has errored",
            "background loop is stopped",
            "engine loop has died",
            "engine process died",
            "mqenginedeaderror",
            "engine core proc",
            "engine core initialization failed",
            "failed core proc",
            "enginecore died unexpectedly",
            "died unexpectedly, shutting down",
            "worker proc ",
            "scheduler died",
            "the engine is dead",
            "initialization failed. please see the error messages above",
            "rank 0 scheduler is dead",
            "scheduler or detokenizer",
            "engine actor died",
            "enginegenerateerror",
        ),
        r"EngineDead|EngineCore encountered|background loop|engine loop has died|engine process died|"
        r"engine core (?:proc|init)|failed core proc|died unexpectedly|Worker proc .{0,200}died|scheduler died|"
        r"scheduler is dead|"
        r"engine is dead|error messages above|engine actor died|EngineGenerateError",
        says="the engine is gone, seen from outside; the reason is in its own output before",
    ),
    Sign(
        "engine-scheduler-code",
        "end",
        ("scheduler died during initialization", "exit code: -"),
        r"exit code: ?(?P<code>-\d+)",
        says="how the engine's process ended",
    ),
    Sign(
        "engine-rpc-timeout",
        "end",
        ("rpc call to",),
        r"RPC call to (?P<method>\w+) timed out",
        says="a worker of the engine did not answer in time",
    ),
    Sign(
        "engine-hang",
        "end",
        (
            "watchdog timeout",
            "couldn't get a response from detokenizer",
            "server couldn't get a response",
            "health check timeout",
            "health check failed",
            "engine is not responding",
            "is unresponsive",
            "no response from engine",
            "shm_broadcast",
            "no available shared memory broadcast block",
        ),
        r"watchdog timeout|get a response from|health check (?:timeout|failed)|not responding|unresponsive|"
        r"no response from|"
        r"No available (?:shared memory broadcast )?block found in \d+ second",
        unless=r"missing too many|ray timeout or error|readiness|liveness|node.{0,200}health check",
        says="the engine lives but does not answer",
    ),
    Sign(
        "engine-killed-by-trainer",
        "symptom",
        ("killing actor", "health check failed for rollout engine"),
        r"Health check failed for rollout engine|Killing actor",
        says="the framework gave an engine up and killed it",
    ),
    Sign(
        "engine-no-room",
        "end",
        (
            "not enough memory. please try to increase --mem-fraction-static",
            "no available memory for the cache blocks",
            "to serve at least one request with the model",
            "is larger than the maximum number of tokens that can be stored",
            "increasing `gpu_memory_utilization`",
            "increase `gpu_memory_utilization`",
            "increase --mem-fraction-static",
            "larger than the available kv cache memory",
            "estimated maximum model length",
            "less than desired gpu memory utilization",
            "error in memory profiling",
            "the memory capacity is unbalanced",
        ),
        says="at its start the engine found no room for its cache within its share",
    ),
    Sign(
        "engine-other-tenant",
        "why",
        ("free memory on device", "error in memory profiling", "the memory capacity is unbalanced"),
        r"Free memory on device.{0,200}\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).{0,200}less than desired|"
        r"Error in memory profiling|memory capacity is unbalanced",
        says="the device was not free when the engine started",
    ),
    Sign(
        "engine-kv",
        "end",
        (
            "decode out of memory",
            "prefill out of memory",
            "out of memory even after retracting",
            "prefill oom",
            "decode oom",
            "no space left in the kv",
            "kv cache pool is exhausted",
            "try to allocate",
            "kv cache is full",
            "pool is exhausted",
            "not enough kv cache",
            "insufficient kv",
            "exceeds the kv cache capacity",
        ),
        r"(?:Decode|Prefill) (?:out of memory|OOM)|even after retracting|"
        r"KV (?:cache )?(?:pool )?(?:is )?(?:exhausted|full)|"
        r"Try to allocate \d+ tokens|not enough KV|insufficient KV|exceeds the KV|pool is exhausted",
        unless=r"Retract requests|retracted|preempt",
        says="requests need more cache slots than the engine's pool has",
    ),
    Sign(
        "engine-retract",
        "benign",
        ("retract requests", "retracted requests", "is preempted by preemptionmode", "kv cache pool is full."),
        says="normal back-pressure of an engine with a full cache",
    ),
    Sign(
        "graph-capture",
        "why",
        (
            "capture cuda graph failed",
            "capturing cuda graph",
            "capture_model",
            "cuda graph capture",
            "cudagraph",
            "capture cuda graph",
            "capture_one_batch_size",
            "cuda_graph_runner",
            "graph_capture",
        ),
        r"captur\w* .{0,20}graph|graph.{0,12}captur|capture_model|capture_one_batch|cuda_graph_runner|"
        r"CUDAGraph.{0,200}captur",
        unless=r"captur\w+ (?:finished|end|took|done)|100%",
        says="CUDA graphs were being captured",
    ),
)
