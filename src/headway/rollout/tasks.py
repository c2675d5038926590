"""Problems from reasoning-gym, drawn in a reward process: its datasets follow the hash seed, and it imports much."""

import base64
import hashlib
from collections.abc import Generator, Mapping
from itertools import count
from typing import Any

from headway.errors import InputError
from headway.rollout.files import Record
from headway.rollout.frames import Message
from headway.rollout.worker import Worker

CHUNK = 1024
"""Problems of one reasoning-gym seed. Fixed, because some datasets make other problems for another size."""

BATCH = 64
"""Problems of one request."""


def task_setup(task: str, params: Mapping[str, Any], memory: int | None) -> Message:
    """The set-up message of a reward process for a reasoning-gym dataset; `memory` limits it, in bytes."""
    return {"kind": "task", "task": task, "params": dict(params), "memory": memory, "folders": []}


def draw_records(task: str, params: Mapping[str, Any], seed: int) -> Generator[Record, None, None]:
    """The task's problems in an order that only `seed` and `params` decide, repeated ones included.

    Ends when a whole chunk brings no new problem: the task has no more. Close the generator to end its process.

    Raises InputError for an unknown task, unknown parameters, and values that reasoning-gym refuses.
    """
    known: set[str] = set()
    first = _first_seed(seed)
    with Worker(task_setup(task, params, memory=None)) as worker:
        for chunk in count():
            before = len(known)
            # Most datasets seed problem i with seed + i, so the next chunk starts where this one ends.
            chunk_seed = (first + chunk * CHUNK) % 2**32
            for at in range(0, CHUNK, BATCH):
                batch = range(at, at + BATCH)
                reply = worker.ask({"draw": list(batch), "seed": chunk_seed, "size": CHUNK}, timeout_s=None)
                if "problems" in reply:
                    raise InputError(*reply["problems"])
                for index, (question, answer, entry) in zip(batch, reply["drawn"], strict=True):
                    known.add(question)
                    place = f"problem {chunk * CHUNK + index} of {task}"
                    yield Record(question, answer, None, base64.b64decode(entry), place)
            if len(known) == before:
                return


def _first_seed(seed: int) -> int:
    """Far from that of the next seed, whose problems would otherwise be the same but one."""
    return int.from_bytes(hashlib.sha256(f"problems {seed}".encode()).digest()[:4])
