"""Weights in transfer do not fit."""

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule

CALLS = (
    r"update_weights?|sync_weights|sync_model|broadcast_(?:weights|params)|flattened_bucket|full_tensor|"
    r"summon_full_params|gather_(?:params|weights)|weight_(?:sync|updat)"
)
GATHERED = r"unwrap_model_for_generation|\bGatheredParameters\(|partition_parameters\.py\", line \d+, in __enter__"
"""ZeRO 3 puts all parameters of the model on each device; a layer's own gather in a pass is none of it."""
PARTS = Advice(
    "generate without all parameters on each device, or with an engine of its own, or with ZeRO 2",
    "no whole copy of the model beside the shard", "slower: each layer is gathered for each token",
    "gather-parts",
)  # fmt: skip


def _find(case: Case) -> Claim | None:
    if case.mechanism != "device-allocation-failure":
        return None
    gathered = case.frame(GATHERED)
    if gathered is not None:
        because = "ZeRO 3 was gathering all parameters of the model on each device"
        return Claim("supported", because, (gathered,), (PARTS,))
    place = case.frame(CALLS)
    return Claim("supported", "the request came while weights went to the engine", (place,)) if place else None


RULE = Rule(
    name="device-weight-sync",
    level="cause",
    sees="A refused request in update_weights, a gather of all parameters (ZeRO 3), or a bucket.",
    why="Old weights, gathered new ones and buffers lie side by side during the transfer.",
    sure="Supported by the call.",
    look_alikes="Loading a checkpoint at the start uses load_weights too.",
    example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.\n  File "
    '"/app/update_weight.py", '
    "line 80, in update_weights_from_tensor",
    near_miss='torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n  File "/app/model.py", line '
    "80, "
    "in forward",
    advice=(
        Advice("smaller buckets of weights", "less lies side by side", "a slower transfer", "sync-bucket"),
        Advice(
            "lower the engine's share of the device",
            "room for the other process on the device",
            "fewer requests at once",
            "engine-share",
        ),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
