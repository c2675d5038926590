"""What a run of headway writes to disk: checkpoints, the final weights, logs."""

from typing import Literal

from msgspec import Struct

from headway.errors import DoesNotFitError
from headway.facts.filesystem import FileSystem
from headway.facts.workload import DTYPE_BYTES, Workload
from headway.plan import optimizer, weights
from headway.units import format_bytes

STEP_BYTES = 8 << 10
"""What a step adds to metrics, TensorBoard and the recording; 2.3 to 5.5 KiB were measured."""
TOKEN_BYTES = 32
"""A token of a sample in rollouts.jsonl: its id, its log-prob of 20 digits, its text."""
VOCABULARY_BYTES = 100
"""A token of the vocabulary in tokenizer.json: 71 (SmolLM2), 75 (Qwen3), 133 (Llama 3)."""
HEADERS = 64 << 10
"""Names and shapes of tensors, settings, the recording's start."""


class Disk(Struct, frozen=True):
    """What a run writes, in bytes: `checkpoint` each, of which `checkpoints` are there at the most, one that is being
    written among them, and `kept` at the end; `final`, and `logs` of the whole run. `adapter`: `final` is one.

    >>> Disk(checkpoint=100, checkpoints=3, kept=2, final=80, logs=5, adapter=False).bytes
    305
    """

    checkpoint: int
    checkpoints: int
    kept: int
    final: int
    logs: int
    adapter: bool

    @property
    def bytes(self) -> int:
        """The most that is there at a time: while the last checkpoint is written, or beside the final weights."""
        return max(self.checkpoints * self.checkpoint, self.kept * self.checkpoint + self.final) + self.logs


def disk(workload: Workload, *, keep: int, save_every: int, rollouts: int) -> Disk:
    """What a run writes that saves every `save_every` steps, keeps the last `keep` checkpoints, and writes `rollouts`
    samples a step.

    A checkpoint has the trained parameters and the optimizer's state. The final folder has the model, or the adapter,
    and the tokenizer.
    """
    trained = weights.trained_parameters(workload) * weights.trained_size(workload)
    state = optimizer.moment_bytes(workload) + optimizer.master_bytes(workload)
    adapter = workload.trainer.lora is not None
    model = trained if adapter else workload.model.parameters() * DTYPE_BYTES[workload.trainer.param_dtype]
    saves = 1 if save_every == 0 else -(-workload.steps // save_every)
    sample = rollouts * workload.rollout.longest * TOKEN_BYTES
    evaluations = 1 + workload.steps // max(1, workload.first_eval or workload.steps)
    return Disk(
        checkpoint=trained + state + HEADERS,
        checkpoints=min(keep + 1, saves),
        kept=min(keep, saves),
        final=model + workload.model.vocab * VOCABULARY_BYTES,
        logs=HEADERS + workload.steps * (STEP_BYTES + sample) + evaluations * sample,
        adapter=adapter,
    )


def largest_keep(found: Disk, room: int) -> int:
    """How many checkpoints may be kept in `room` bytes; 0 where one and what replaces it are too many."""
    for keep in range(found.kept, 0, -1):
        count = min(keep + 1, found.checkpoints)
        if Disk(found.checkpoint, count, keep, found.final, found.logs, found.adapter).bytes <= room:
            return keep
    return 0


class DiskVerdict(Struct, frozen=True):
    """A run's disk against its output directory's file system. `held`: bytes that the run has written there before;
    `system` is None where it is not known, as on another machine.

    >>> DiskVerdict("runs/a", Disk(100, 3, 2, 80, 5, False), None, 0).kind
    'cannot tell'
    """

    directory: str
    disk: Disk
    system: FileSystem | None
    held: int

    @property
    def needed(self) -> int:
        """Bytes that the run has still to write."""
        return max(0, self.disk.bytes - self.held)

    @property
    def kind(self) -> Literal["fits", "does not fit", "cannot tell"]:
        """Whether that much is free now."""
        if self.system is None:
            return "cannot tell"
        return "fits" if self.needed <= self.system.free else "does not fit"

    def text(self) -> str:
        """The disk in one line."""
        found = self.disk
        count = f"{found.checkpoints} checkpoint{'s' if found.checkpoints > 1 else ''} of"
        parts = (
            f"{count} {format_bytes(found.checkpoint)}, the final {'adapter' if found.adapter else 'model'} "
            f"{format_bytes(found.final)}, logs {format_bytes(found.logs)}"
        )
        held = f"; {format_bytes(self.held)} of it are there" if self.held else ""
        room = f"; {self.system.room()}" if self.system is not None else ""
        return f"Disk: up to {format_bytes(found.bytes)} ({parts}{held}){room}"

    def check(self) -> None:
        """DoesNotFitError where the run may not start; it says what to set."""
        if self.system is None or self.kind != "does not fit":
            return
        keep = largest_keep(self.disk, self.system.free + self.held)
        fewer = f"set output.keep = {keep}, " if 0 < keep < self.disk.kept else ""
        raise DoesNotFitError(
            f"output.dir = {self.directory}: the run does not fit on its disk: {format_bytes(self.needed)} are to be "
            f"written, and {self.system.room()}; make room there, {fewer}or set output.dir to another file system"
        )
