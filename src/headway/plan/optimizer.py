"""State of AdamW and the temporaries of a step, as train/optim.py keeps them."""

from headway.facts.workload import Workload
from headway.plan.weights import largest_parameter, trained_parameters, trained_size

FP32 = 4
BLOCK = 1 << 20
"""Elements of a parameter that are updated together."""


def moment_bytes(workload: Workload) -> int:
    """First and second moments, fp32, created in the first optimizer step."""
    return 2 * FP32 * trained_parameters(workload)


def master_bytes(workload: Workload) -> int:
    """fp32 master of half-precision parameters, created in the first optimizer step."""
    return FP32 * trained_parameters(workload) if trained_size(workload) < FP32 else 0


def step_temporaries(workload: Workload) -> int:
    """Adam's denominator, and in half precision the gradient in fp32, of one block of elements."""
    elements = min(BLOCK, largest_parameter(workload))
    return elements * (FP32 if trained_size(workload) == FP32 else 2 * FP32)
