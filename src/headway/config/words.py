"""One vocabulary for `--set`: keys of a RunSpec and keys of a Workload that mean the same, in both directions."""

from collections.abc import Mapping, Sequence

SAME: Mapping[str, str] = {
    "model.dtype": "trainer.param_dtype",
    "model.attention": "trainer.attention",
    "lora": "trainer.lora",
    "lora.rank": "trainer.lora.rank",
    "lora.targets": "trainer.lora.targets",
    "data.max_prompt": "rollout.max_prompt",
    "reward.kind": "reward_kind",
    "reward.memory": "reward_limit_bytes",
    "train.steps": "steps",
    "train.updates": "trainer.updates",
    "train.cap": "trainer.cap",
    "train.checkpointing": "trainer.checkpointing",
    "train.logprob_chunk": "trainer.logprob_chunk",
    "eval.problems": "rollout.eval_problems",
    "eval.samples": "rollout.eval_samples",
    "eval.every": "eval_every",
    "memory.device": "device",
    "memory.threads": "threads",
    "output.save_every": "save_every",
    "output.tensorboard": "tensorboard",
}
"""A RunSpec's key -> the Workload's of the same values. Keys that both call the same are not here."""
RUNSPEC = {workload: runspec for runspec, workload in SAME.items() if "." in workload}
"""The other way; a RunSpec has no key outside of a section, so `steps=3` alone is none of its words."""
KL = "objective.kl_coef"


def as_workload(settings: Sequence[str]) -> tuple[str, ...]:
    """`key=value` settings in the Workload's words.

    >>> as_workload(["train.cap=512", "rollout.samples=4", "objective.kl_coef=0"])
    ('trainer.cap=512', 'rollout.samples=4', 'trainer.reference=none')
    """
    found: list[str] = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        name = key.strip()
        if name == KL and equals and (weight := _number(value)) is not None:
            found.append(f"trainer.reference={'copy' if weight else 'none'}")
            found += [f"trainer.reference_weight={value.strip()}"] if weight else []
            continue
        found.append(f"{SAME[name]}{equals}{value}" if name in SAME else setting)
    return tuple(found)


def as_runspec(settings: Sequence[str]) -> tuple[str, ...]:
    """`key=value` settings in the RunSpec's words.

    >>> as_runspec(["trainer.cap=512", "train.lr=1e-5", "trainer.reference=none"])
    ('train.cap=512', 'train.lr=1e-5', 'objective.kl_coef=0')
    """
    found = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        name = key.strip()
        if name == "trainer.reference" and value.strip().lower() == "none":
            found.append(f"{KL}=0")
            continue
        found.append(f"{RUNSPEC[name]}{equals}{value}" if name in RUNSPEC else setting)
    return tuple(found)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
