"""Devices that do not multiply bf16: what a plan says of a run in bf16 on them, and the half precision of changes."""

import re

from headway.facts.machine import Machine
from headway.facts.workload import Workload
from headway.foreign.spelling import Scalar, SpellKey

WITHOUT_BF16 = frozenset({"t4", "v100-16", "v100-32", "p100", "rtx2080-ti"})
"""Pascal, Volta and Turing: bf16 came with compute capability 8.0 (CUDA programming guide, arithmetic types)."""


def without_bf16(machine: Machine) -> str:
    """The name of the machine's device where it does not multiply bf16; empty where it does.

    >>> from headway.facts.machines import by_name
    >>> without_bf16(by_name("2xt4")), without_bf16(by_name("a100"))
    ('t4', '')
    """
    name = re.sub(r"^(\d+x){0,2}", "", machine.name)
    return name if name in WITHOUT_BF16 else ""


def note(workload: Workload, machine: Machine) -> tuple[str, ...]:
    """That a run in bf16 is slow there, or does not start: torch computes bf16 by way of fp32, vLLM and
    FlashAttention refuse. Unsloth takes fp16 there by itself."""
    name, trainer, engine = without_bf16(machine), workload.trainer, workload.engine
    used = "bf16" in (trainer.param_dtype, trainer.compute_dtype) or (engine is not None and engine.dtype == "bf16")
    if not name or not used or workload.device != "cuda" or trainer.system.startswith("unsloth"):
        return ()
    refuses = "vLLM and FlashAttention refuse it" if engine is not None else "FlashAttention refuses it"
    instead = "fp32" if trainer.system == "headway" else "fp16"
    return (f"{name} has no bf16: torch emulates it, slowly, and {refuses}; {instead} runs there",)


def proposes(workload: Workload, machine: Machine, key: SpellKey, value: Scalar) -> bool:
    """Whether a change of precision is worth proposing: trained fp16 parameters lose what bf16 ones keep, and
    headway trains in none."""
    if key != "trainer.param_dtype" or value != "bf16" or not without_bf16(machine):
        return True
    return workload.trainer.lora is not None and workload.trainer.system != "headway"


def in_words(text: str, machine: Machine) -> str:
    """A change's text with the half precision that the machine multiplies.

    >>> from headway.facts.machines import by_name
    >>> in_words('dtype="bfloat16"', by_name("t4")), in_words('dtype="bfloat16"', by_name("a100"))
    ('dtype="float16"', 'dtype="bfloat16"')
    """
    return text.replace("bfloat16", "float16").replace("bf16", "fp16") if without_bf16(machine) else text
