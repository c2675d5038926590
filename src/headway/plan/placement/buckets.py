"""What new weights take on their way from the trainer to the engine, on both sides."""

from headway.facts.workload import DTYPE_BYTES, Engine, Workload
from headway.plan import pinned
from headway.plan.activations import FP32
from headway.plan.engines import COMMUNICATOR, COMMUNICATOR_MANY
from headway.plan.item import Item
from headway.plan.placement.sides import Side, is_megatron
from headway.plan.systems import uses_zero


def sending(side: Side, engine: Engine) -> Item:
    """On the trainer's device: a bucket while it is filled, and what it becomes when it is sent.

    FSDP gathers in the trainer's dtype up to a bucket, casts it and flattens it into one tensor: at most twice its
    size. Megatron gathers a tensor of all tensor ranks, or experts of all expert ranks, whose size counts against the
    bucket, and converts it: again a second copy; a bucket that is still with the receiver may be a third. A tensor
    larger than a bucket goes alone. An engine in the trainer's own process reads the tensors where they are.
    """
    workload, bucket = side.workload, engine.bucket
    if workload.in_trainers_process:
        return _in_place(side, engine)
    if is_megatron(workload):
        largest = side.largest * pinned.HALF
        held = 2 * max(bucket, largest)
        text = f"2 x max(bucket {bucket:,}, largest tensor {largest:,} B)"
        return Item("weight buckets", held, held * 3 // 2, text, "gathered from the ranks, converted")
    size = DTYPE_BYTES[workload.trainer.param_dtype]
    alone = side.largest * (size + 2 * DTYPE_BYTES[engine.dtype])
    text = f"max(2 x {bucket:,}, {side.largest:,} x {size} + 2 + 2 B)"
    return Item.exact("weight buckets", max(2 * bucket, alone), text, "gathered, cast, flattened")


def _in_place(side: Side, engine: Engine) -> Item:
    """TRL hands vLLM one parameter after the other, which copies it into its own: those of several ranks are gathered
    one at a time. An adapter is merged into its base before, a projection at a time: its product in fp32 and the
    scaled one. An engine that shares the trainer's tensors takes nothing.

    Source: TRL 1.16, `VLLMGeneration.sync_weights`; PEFT, `merge_adapter`.
    """
    workload, sizes = side.workload, []
    shape, trainer, size = workload.model, workload.trainer, DTYPE_BYTES[workload.trainer.param_dtype]
    if engine.shared:
        return Item.exact("weights being sent", 0, "the engine's weights are the trainer's own", "")
    if workload.layout.shards > 1:
        # adapters cannot be merged in shards, so that ZeRO 3 gathers the whole model
        whole = trainer.lora is not None and uses_zero(trainer)
        sizes.append((shape.parameters() if whole else side.largest) * size)
    if trainer.lora is not None:
        sizes.append(2 * max(shape.ffn, shape.query_width) * shape.hidden * FP32)
    text = "parameter by parameter" if trainer.lora is None else "parameter by parameter, adapters merged"
    return Item("weights being sent", sum(sizes), 2 * sum(sizes), text, "TRL's vllm_generation.py")


def receiving(side: Side, engine: Engine) -> Item:
    """On the device of an engine that is apart: one bucket; a second one where the next comes in meanwhile."""
    held = max(engine.bucket, side.largest * pinned.HALF)
    return Item("weight buckets", held, 2 * held, f"one bucket of {held:,} B", "received before it is copied")


def group(workload: Workload, engine_devices: int) -> Item:
    """The process group through which one rank of the trainer sends to all devices of the engines."""
    del workload
    size = COMMUNICATOR.get(engine_devices + 1, COMMUNICATOR_MANY)
    return Item("weight update group", size, 2 * size, f"{engine_devices} + 1 ranks", "NCCL issue 964")


def snapshot(side: Side, engine: Engine) -> Item | None:
    """What the trainer keeps of the weights last sent, to send only what changed."""
    return side.copy("weights as sent") if engine.update == "delta" else None
