"""/dev/shm is too small."""

import re

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule


def _find(case: Case) -> Claim | None:
    found = case.first("shm-insufficient")
    if found is not None:
        certain = re.search(r"exceeds memory available|shared memory segment|No space", found.place.text) is not None
        return Claim(
            "proven" if certain else "supported", "the text names shared memory as what was full", (found.place,)
        )
    bus = case.words("loader-killed", "bus error")
    return (
        Claim("supported", "a data loader's worker wrote to shared memory that had no page left", (bus.place,))
        if bus
        else None
    )


RULE = Rule(
    name="shm-too-small",
    level="cause",
    sees="'insufficient shared memory (shm)', 'exceeds memory available in /dev/shm', a bus error of a data loader.",
    why="Containers get 64 MiB of /dev/shm unless told otherwise; data loaders, NCCL and Ray's store write there.",
    sure="Proven where the text names /dev/shm and its size; supported for torch's hint.",
    look_alikes="A bus error can also be a file that was cut while mapped.",
    example="RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that "
    "dataloader's "
    "workers are out of shared memory.",
    near_miss="OSError: [Errno 28] No space left on device: '/ckpt/iter_50/model.pt'",
    advice=(
        Advice(
            "an emptyDir of medium Memory at /dev/shm",
            "room in /dev/shm",
            "counts as the container's memory",
            on="kubernetes",
        ),
        Advice(
            "docker run --shm-size=64g, or --ipc=host",
            "room in /dev/shm",
            "counts as the container's memory",
            on="docker",
        ),
        Advice("a larger /dev/shm", "room in /dev/shm", "counts as memory"),
        Advice(
            "fewer workers of the data loader", "fewer samples in shared memory", "slower loading", "loader-workers"
        ),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
