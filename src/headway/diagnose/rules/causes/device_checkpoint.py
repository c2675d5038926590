"""Saving holds device memory."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule

CALLS = (
    r"save_checkpoint|torch\.save|save_model|save_pretrained|dist_checkpointing|FileSystemWriter|"
    r"get_model_state_dict|full_state_dict|in save\b"
)


def _find(case: Case) -> Claim | None:
    if case.mechanism != "device-allocation-failure":
        return None
    place = case.frame(CALLS)
    if place is None and case.settings.phase != "save":
        return None
    return Claim("supported", "the request came while a checkpoint was saved", (place,) if place else ())


RULE = Rule(
    name="device-checkpoint",
    level="cause",
    sees="A refused request in save_checkpoint, torch.save or the gathering of a state dict.",
    why="A full state dict is gathered on the device, or staging buffers stay after a save.",
    sure="Supported by the call.",
    look_alikes="An error at the next wake-up after a save shows the wake-up, and the save may still be why.",
    example='torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.\n  File "/app/trainer.py", line '
    "80,"
    " in save_checkpoint",
    near_miss="saved checkpoint\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n    "
    "loss.backward()",
    advice=(
        Advice("save sharded, or gather to the host", "no full copy on the device", "host memory", "save-sharded"),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
