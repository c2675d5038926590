"""Parameters and their gradients in bytes."""

from headway.facts.shapes import ModelShape
from headway.facts.workload import DTYPE_BYTES, Lora, Workload

ADAPTER_BYTES = 4
"""Adapters are fp32 whatever the base is."""


def base_bytes(workload: Workload) -> int:
    """The one copy of the model's parameters."""
    return workload.model.parameters() * DTYPE_BYTES[workload.trainer.param_dtype]


def adapter_parameters(shape: ModelShape, lora: Lora) -> int:
    """Elements of all A [rank, in] and B [out, rank].

    >>> from headway.facts.shapes import by_name
    >>> adapter_parameters(by_name("tiny-llama"), Lora(8, "attention"))  # 2 x 8 x (128 + 96 + 96 + 128)
    7168
    """
    return shape.layers * sum(lora.rank * (i + o) for i, o in shape.lora_linears(lora.targets))


def trained_parameters(workload: Workload) -> int:
    """Elements that take a gradient."""
    lora = workload.trainer.lora
    return workload.model.parameters() if lora is None else adapter_parameters(workload.model, lora)


def trained_size(workload: Workload) -> int:
    """Bytes of an element that takes a gradient, and of its gradient."""
    return ADAPTER_BYTES if workload.trainer.lora else DTYPE_BYTES[workload.trainer.param_dtype]


def gradient_bytes(workload: Workload) -> int:
    """All gradients, as they stand between the last backward pass and the optimizer."""
    return trained_parameters(workload) * trained_size(workload)


def block_gradient_bytes(workload: Workload) -> int:
    """Gradients of one block."""
    shape, lora = workload.model, workload.trainer.lora
    if lora is None:
        return shape.block_parameters() * trained_size(workload)
    return adapter_parameters(shape, lora) // shape.layers * ADAPTER_BYTES


def head_gradient_bytes(workload: Workload) -> int:
    """The gradient of the output head as the log-probs' backward pass makes it; 0 where the base is frozen."""
    if workload.trainer.lora:
        return 0
    return workload.model.embedding_parameters() * trained_size(workload)


def largest_parameter(workload: Workload) -> int:
    """Elements of the largest parameter that is trained."""
    shape, lora = workload.model, workload.trainer.lora
    if lora is None:
        return shape.embedding_parameters()
    return max(lora.rank * max(i, o) for i, o in shape.lora_linears(lora.targets))
