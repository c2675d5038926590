"""Miles's launch scripts: slime's flags, and an FSDP trainer beside Megatron's.

Flags and defaults: radixark/miles 31f1ca961, miles/utils/arguments.py and miles/backends/fsdp_utils/arguments.py.
"""

from headway.foreign import slime
from headway.foreign.command import Launch, Line
from headway.foreign.found import Found, Setting
from headway.foreign.rules import Answers, Unclear
from headway.foreign.shell import Script

RULES = slime.RULES


def read(script: Script) -> Found | None:
    """A script of Miles; None where it is none."""
    found = slime.trainers(script)
    lines = [line for launch in found for line in launch.lines(slime.SWITCHES)]
    if not found or not slime.is_miles(script, lines):
        return None
    return slime.describe(script, found, "miles", RULES, _own)


def _own(said: Answers, line: Line, launch: Launch) -> tuple[Answers, dict[str, Setting]]:
    """Miles's own: the trainer's backend, and what the FSDP trainer offloads."""
    own = slime.shared(said, line, launch)
    backend = line.last("train-backend")
    own["trainer_backend"] = "megatron" if backend is None else backend.text or Unclear(backend.why)
    own["recompute"] = slime.recompute(line)
    own["param_offload"] = "fsdp-cpu-offload" in line
    derived = slime.follows(said)
    if own["trainer_backend"] == "fsdp":
        derived |= {"zero_stage": 3, "dtype": "fp32" if "no-keep-fp32-master" not in line else "bf16"}
        if own["param_offload"]:
            derived["optimizer_offload"] = True
    return own, derived
