"""What torch, torch_memory_saver and the CUDA runtime print, torch 1.10 to 2.14.

Wordings: c10/cuda/CUDACachingAllocator.cpp, c10/core/CPUAllocator.cpp, torch/distributed/elastic, torch/utils/data.
"""

from headway.diagnose.sign import Sign

_ADVICE = (
    r"may not be an issue|^\s*(?:If reserved|See documentation|PYTORCH_\w*ALLOC_CONF=)|"
    r"^\s*(?:except|raise|assert|import|from|#)\b|\bif (?:the |you |it |an? )?.{0,40}out of memory"
)

SIGNS = (
    Sign(
        "cuda-oom",
        "end",
        (
            "cuda out of memory",
            "hip out of memory",
            "npu out of memory",
            "xpu out of memory",
            "outofmemoryerror",
            "tried to allocate",
            "cuda error: out of memory",
            "cudaerrormemoryallocation",
            "cuda_error_out_of_memory",
            "cublas_status_alloc_failed",
            "cudnn_status_alloc_failed",
            "cumemcreate",
            "resource_exhausted: out of memory",
            "would exceed allowed memory",
            "memory mapping failed with oom",
        ),
        r"(?:CUDA|HIP|NPU|XPU) out of memory|torch\.(?:cuda\.)?OutOfMemoryError|RayTaskError\(OutOfMemoryError\)|"
        r"tried to allocate|CUDA error: out of memory|"
        r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|ALLOC_FAILED|cuMemCreate.{0,200}(?:fail|error|"
        r"out of memory)|"
        r"RESOURCE_EXHAUSTED|would exceed allowed memory|mapping failed with OOM",
        unless=_ADVICE + r"|running low on memory|bytes.{0,200}DefaultCPUAllocator|DefaultCPUAllocator|retrying|"
        r"cumem_allocator|torch_memory_saver",
        says="the device's allocator refused a request; the numbers in the text say why",
    ),
    Sign(
        "oom-advice",
        "benign",
        ("expandable_segments", "pytorch_cuda_alloc_conf", "pytorch_alloc_conf"),
        says="constant advice below every out-of-memory text of torch",
    ),
    Sign("tms-benign", "benign", ("may not be an issue",), says="printed on a retry that may well succeed"),
    Sign(
        "tms-margin",
        "end",
        ("torchmemorysaver::malloc return oom", "memory_margin_bytes"),
        r"return OOM since memory_margin_bytes|memory_margin_bytes=(?P<margin>\d+)",
        says="torch_memory_saver refused a request because its margin would be touched",
    ),
    Sign(
        "tms-fatal",
        "end",
        ("curesult error", "cudaerror error", "cudaerror: ", "func=cu_mem_create", "func=resume"),
        r"(?:CUresult|cudaError)\w*(?: error)?: ?(?P<code>\d+)|func=(?P<func>\w+)",
        unless=r"may not be an issue",
        says="torch_memory_saver ends the process right there, without a traceback",
    ),
    Sign("tms-function", "context", ("func=",), r"func=(?P<func>\w+)", says="where torch_memory_saver was"),
    Sign(
        "cumem",
        "end",
        ("cumem_allocator", "cumemallocator"),
        r"cumem_?allocator",
        unless=r"INFO|import ",
        says="vLLM's sleep and wake mapping failed",
    ),
    Sign(
        "nv-no-memory",
        "end",
        ("nv_err_no_memory",),
        says="the driver could not get pages; where CPU and GPU share one memory, that one ran out",
    ),
    Sign(
        "cuda-error",
        "end",
        (
            "cuda error:",
            "cuda failure",
            "cudnn_status_",
            "cublas_status_",
            "cuda runtime error",
            "acceleratorerror",
            "illegal memory access",
            "device-side assert",
            "unspecified launch failure",
            "cudaerrorillegaladdress",
            "internal assert failed",
            "assertion `",
        ),
        r"(?:CUDA error|CUDA failure|CUDA runtime error|AcceleratorError|CUBLAS_STATUS|CUDNN_STATUS|"
        r"cudaErrorIllegalAddress|illegal memory access|device-side assert|launch failure|"
        r"INTERNAL ASSERT FAILED)\w*:? ?(?P<what>.*)|\.cuh?:\d+: .{0,200}\bAssertion `.{0,200} failed",
        unless=r"out of memory|ALLOC_FAILED|CUDA error: out|may not be an issue",
        says="a call of the CUDA runtime failed; later calls report the error of an earlier one",
    ),
    Sign(
        "gpu-hardware",
        "end",
        (
            "uncorrectable ecc",
            "fallen off the bus",
            "gpu is lost",
            "unrecoverable ecc",
            "double bit ecc",
            "cudaerroreccuncorrectable",
            "gpu requires reset",
            "nvlink error",
            "uncorrectable nvlink",
            "uncorrectable contained",
            "row remap",
            "device is lost",
            "hardware error",
        ),
        r"uncorrectable (?:ECC|NVLink|contained)|fallen off the bus|GPU is lost|unrecoverable ECC|double.bit ECC|"
        r"ECCUncorrectable|requires reset|NVLink error|row remap.{0,200}(?:fail|pending)|device is lost|"
        r"\bhardware error\b",
        unless=r"Row remap\w* .{0,200}: *(?:No|0|None)|not a hardware error",
        says="the device itself reported a fault",
    ),
    Sign(
        "driver-mismatch",
        "why",
        (
            "driver version is insufficient",
            "no kernel image is available",
            "undefined symbol",
            "glibcxx_",
            "forward compatibility was attempted",
            "version mismatch",
            "driver/library version",
            "cannot open shared object",
            "unsupported ptx version",
            "provided ptx was compiled",
            "system not yet initialized",
            "was compiled using numpy 1",
            "numpy.dtype size changed",
            "incompatible with the pytorch",
        ),
        r"driver version is insufficient|no kernel image|undefined symbol|GLIBCXX_.{0,200}not found|"
        r"forward compatibility|"
        r"version mismatch|cannot open shared object|PTX|not yet initialized|NumPy 1|dtype size changed|"
        r"incompatible",
        says="two parts of the software do not belong together",
    ),
    Sign(
        "bad-ordinal",
        "why",
        ("invalid device ordinal", "no cuda gpus are available"),
        r"invalid device ordinal|No CUDA GPUs are available",
        says="the run asks for a device that it does not see",
    ),
    Sign(
        "pinned",
        "why",
        (
            "cudahostalloc",
            "cachinghostallocator",
            "pin_memory",
            "pinned memory",
            "cudahostregister",
            "cudamallochost",
            "pinnedmemory",
            "pinned host",
            "page-locked",
        ),
        r"cudaHostAlloc|CachingHostAllocator|pin_memory|pinned[ _]?(?:host )?memory|cudaHostRegister|"
        r"cudaMallocHost|page-locked|"
        r"pinned host",
        says="page-locked host memory was asked for",
    ),
    Sign(
        "host-refused",
        "end",
        (
            "memoryerror",
            "std::bad_alloc",
            "bad_array_new_length",
            "unable to allocate",
            "cannot allocate memory",
            "can't allocate memory",
            "[errno 12]",
            "realloc of size",
            "arrowmemoryerror",
        ),
        r"\bMemoryError\b|std::bad_alloc|bad_array_new_length|Unable to allocate [\d.]+ ?[KMGTPE]i?B|"
        r"Cannot allocate memory|"
        r"can't allocate memory|Errno 12|(?:re)?alloc of size \d+ failed|DefaultCPUAllocator: not enough",
        unless=r"CUDA|^\s*(?:raise|assert)\b|except \w*MemoryError|\bGPU\b|shm_open|OutOfMemoryError",
        says="a request for host memory was refused; nobody killed the process",
    ),
    Sign(
        "host-refused-torch",
        "end",
        ("defaultcpuallocator",),
        r"DefaultCPUAllocator: .{0,200}(?:tried to allocate (?P<bytes>\d+)|not enough memory|can't allocate)",
        says="torch's allocator of host memory was refused",
    ),
    Sign(
        "loader-killed",
        "end",
        ("dataloader worker (pid",),
        r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>[\d, ]+)\)? (?:is killed by signal: (?P<signal>[\w ]+)|"
        r"exited unexpectedly)",
        says="a process of the data loader ended by that signal",
    ),
    Sign(
        "shm-insufficient",
        "end",
        (
            "insufficient shared memory",
            "shared memory (shm)",
            "exceeds memory available in /dev/shm",
            "error while creating shared memory segment",
            "unable to open shared memory object",
            "/dev/shm",
        ),
        r"insufficient shared memory|out of shared memory|exceeds memory available in /dev/shm|"
        r"creating shared memory segment|(?:No space left on device|Errno 28|Bus error|"
        r"unable to write).{0,200}/dev/shm|"
        r"/dev/shm.{0,200}(?:No space left|Errno 28|Bus error|is full|100%)|unable to allocate shared memory",
        unless=r"you will need to increase|consider increasing.{0,200}--shm-size.{0,200}warning",
        says="/dev/shm is smaller than what is written to it",
    ),
    Sign(
        "elastic-signal",
        "end",
        ("signals.sig", "death signal", "got signal:"),
        r"(?:Received (?:Signals\.)?(?P<name>SIG\w+|\d+) death signal)|got signal: (?P<signal>\d+)",
        says="torchrun was told to stop by this signal",
    ),
    Sign(
        "elastic-exit",
        "end",
        ("exitcode", "received by pid"),
        r"exitcode ?:? ?(?P<code>-\d+)(?:\)? local_rank: (?P<rank>\d+))?(?: \(pid: (?P<pid>\d+)\))?|"
        r"Signal (?P<signal>\d+) \(SIG\w+\) received by PID",
        says="how torchrun saw a rank end",
    ),
    Sign(
        "elastic-failed",
        "symptom",
        ("childfailederror", "sending process", "processraisedexception"),
        r"ChildFailedError|Sending process \d+ closing signal|ProcessRaisedException",
        says="torchrun ends the other ranks because one failed",
    ),
    Sign(
        "torch-spawn-signal",
        "end",
        ("terminated with signal", "died with <signals"),
        r"(?:process \d+ terminated with signal |died with <Signals\.)(?P<name>SIG\w+)",
        says="how a spawned rank ended",
    ),
)
