"""How many samples or tokens the passes that only score take at once: keys of verl and OpenRLHF beside training's.

verl's `rollout.log_prob_*` are of the actor's old log-probs, `ref.log_prob_*` of the reference's and
`critic.forward_*` of the critic's values; each that is not given is as training's (verl 0.7,
`_generated_ppo_trainer.yaml`). OpenRLHF scores every model in `--micro_rollout_batch_size` samples or
`--rollout_max_tokens_per_gpu` tokens.
"""

from msgspec.structs import replace

from headway.facts.workload import Layout, Trainer, Workload
from headway.foreign.runs import REF, ROLLOUT, Reading

TOKENS = 16384
"""verl's default of `ppo_max_token_len_per_gpu`, which a pass takes where nothing is given."""


def with_scoring(reading: Reading, made: Workload) -> Workload:
    """The run with the micro-batches of its actor's and its reference's log-probs."""
    trainer, system = made.trainer, reading.found.system
    if not trainer.scores or system not in ("verl", "openrlhf"):
        return made
    if system == "openrlhf":
        return replace(made, trainer=_openrlhf(reading, trainer))
    sections = (ROLLOUT, REF) if trainer.reference != "none" else (ROLLOUT,)
    found = [_verl(reading, f"{section}.log_prob", trainer, made.layout) for section in sections]
    longest = made.rollout.longest
    return replace(made, trainer=_scored(trainer, max(found, key=lambda pair: pair[0] or pair[1] * longest)))


def critic_scoring(reading: Reading, trainer: Trainer, layout: Layout) -> Trainer:
    """verl's critic with the micro-batches of its values."""
    return _scored(trainer, _verl(reading, "critic.forward", trainer, layout, dynamic="critic.use_dynamic_bsz"))


def _verl(reading: Reading, prefix: str, trainer: Trainer, layout: Layout, dynamic: str = "") -> tuple[int, int]:
    """(cap, rows) of a pass of verl; the older key counts the samples of all devices."""
    if reading.flag(dynamic or f"{prefix}_use_dynamic_bsz", default=trainer.cap > 0):
        each = reading.number(f"{prefix}_max_token_len_per_gpu")
        return each * layout.context or trainer.cap or TOKENS * layout.context, 0
    rows = reading.number(f"{prefix}_micro_batch_size_per_gpu")
    if not rows and (total := reading.number(f"{prefix}_micro_batch_size")):
        rows = max(1, total // layout.ranks)
    return (0, rows) if rows else (trainer.cap, trainer.rows)


def _openrlhf(reading: Reading, trainer: Trainer) -> Trainer:
    if trainer.rows:
        default = 1 if any("." in name for name in reading.found.flags) else 8
        rows = reading.number("micro_rollout_batch_size", "rollout.micro_batch_size", default=default)
        return _scored(trainer, (0, max(1, rows)))
    return _scored(trainer, (reading.number("rollout_max_tokens_per_gpu", "rollout.max_tokens_per_gpu"), 0))


def _scored(trainer: Trainer, found: tuple[int, int]) -> Trainer:
    """With other micro-batches of passes that only score, where they are others."""
    cap, rows = found if found != (trainer.cap, trainer.rows) else (0, 0)
    return replace(trainer, score_cap=cap, score_rows=rows)
