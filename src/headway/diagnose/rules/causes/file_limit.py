"""No more open files."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("file-limit")
    return Claim("proven", "the limit of open files was reached", (found.place,)) if found else None


RULE = Rule(
    name="file-limit",
    level="cause",
    sees="[Errno 24] Too many open files.",
    why="ulimit -n is often 1,024; sockets of actors, shards and loaders' shared tensors count.",
    sure="Proven by the text.",
    look_alikes="'too many open files in system' is the machine's limit.",
    example="OSError: [Errno 24] Too many open files: '/proc/meminfo'",
    near_miss="opened 24 files",
    advice=(
        Advice("ulimit -n 65535 before ray start", "room", "none", on="ray"),
        Advice("ulimit -n 65535 in the shell that starts the run", "room", "none"),
        Advice(
            "torch.multiprocessing.set_sharing_strategy('file_system')",
            "fewer descriptors of loaders",
            "files in /dev/shm",
        ),
    ),
    settle=(settle.STDERR,),
    find=_find,
)
