"""Parameters and their gradients in bytes."""

from headway.facts.workload import DTYPE_BYTES, Workload

ADAPTER_BYTES = 4
"""Adapters are fp32 whatever the base is."""


def base_bytes(workload: Workload) -> int:
    """The one copy of the model's parameters."""
    return workload.model.parameters() * DTYPE_BYTES[workload.trainer.param_dtype]


def trained_parameters(workload: Workload) -> int:
    """Elements that take a gradient."""
    lora = workload.trainer.lora
    return workload.model.parameters() if lora is None else workload.model.lora_parameters(lora.rank, lora.targets)


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
    return shape.lora_parameters(lora.rank, lora.targets) // shape.layers * ADAPTER_BYTES


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
