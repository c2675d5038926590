"""A request for host memory was refused."""

from headway.diagnose.evidence import Evidence, Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule


def _terminate(evidence: Evidence) -> Grade | None:
    return "proven" if "bad_alloc" in evidence.fields.get("what", "") else None


RULE = Rule(
    name="host-allocation-failure",
    level="mechanism",
    tier=1,
    sees="MemoryError, std::bad_alloc, 'Unable to allocate 50.0 GiB for an array', [Errno 12], DefaultCPUAllocator.",
    why="The kernel refused address space: a ulimit -v, strict overcommit, or a request of absurd size. A memory "
    "cgroup never "
    "refuses, it kills.",
    sure="Proven by the text. The size that was asked for tells a bug (far above the machine) from a full machine.",
    look_alikes="CUDA out of memory is the device. 'Resource temporarily unavailable' is the limit of threads.",
    example="numpy.core._exceptions._ArrayMemoryError: Unable to allocate 50.0 GiB for an array with shape "
    "(6710886400,)",
    near_miss="fork: retry: Resource temporarily unavailable",
    refuters=("the process was killed by a signal",),
    advice=(
        Advice("check ulimit -v and vm.overcommit_memory", "a limit that nobody wanted", "none"),
        Advice("ask for less at once: shard, stream, or use fewer workers", "the request fits", "slower"),
    ),
    settle=(settle.MEMORY, settle.DMESG),
    ends={"host-refused": "proven", "host-refused-torch": "proven", "terminate-called": _terminate},
)
