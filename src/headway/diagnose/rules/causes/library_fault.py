"""Parts of the software do not belong together."""

from headway.diagnose.case import Case
from headway.diagnose.engines import engine_of, is_late
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule

LIBRARIES = r"nccl|cuda|cudnn|triton|flash_?attn|libtorch|c10|vllm|sglang|transformer_engine|ucx|\.so\b"


def _find(case: Case) -> Claim | None:
    found = case.first("driver-mismatch")
    if found is not None and case.mechanism in {
        "python-exception",
        "native-crash",
        "engine-exit",
        "device-allocation-failure",
    }:
        return Claim("supported", "the text names versions that do not belong together", (found.place,))
    if case.event is not None and is_late(case) and engine_of(case):
        because = "a kernel under the engine failed, and the call that is shown may be a later one"
        return Claim("open", because, (case.event.place,))
    if case.mechanism == "native-crash" and (place := case.frame(LIBRARIES)) is not None:
        return Claim("open", "the crash is in a library's code", (place,))
    return None


RULE = Rule(
    name="library-fault",
    level="cause",
    sees="'undefined symbol', 'no kernel image', 'driver version is insufficient', or a crash inside a library; an "
    "illegal memory access in an engine's kernels.",
    why="A wheel was built for another version of torch, CUDA, the driver or the device.",
    sure="Supported by the loader's or driver's words; a crash in a library is open, because the caller may have "
    "passed a wrong pointer.",
    look_alikes="An ImportError of a package that is not installed.",
    example="ImportError: /site-packages/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEa",
    near_miss="ModuleNotFoundError: No module named 'my_reward'",
    advice=(
        Advice(
            "install the versions that the framework names, in a fresh environment or its image", "parts fit", "time"
        ),
    ),
    settle=(settle.STDERR,),
    find=_find,
)
