"""A reference model that is loaded though its coefficient is 0."""

from collections.abc import Iterator

from headway.foreign.lint.rule import SLIME, Rule, Sighting, Subject
from headway.units import format_bytes

LEAVE_OUT = {
    "slime": "leave out --use-kl-loss; --ref-load may stay, it is also the checkpoint that a run without --load "
    "starts from",
    "verl": "set actor_rollout_ref.actor.use_kl_loss=False",
}


def find(subject: Subject) -> Iterator[Sighting]:
    """A reference is loaded, and every coefficient that it could be for is 0."""
    found = subject.found
    if found.value("reference_loaded") is not True or found.value("use_kl_loss") is not True:
        return
    if subject.number("kl_loss_coef") != 0 or not _without_reward(subject):
        return
    text = f"a reference model is loaded, and its coefficient is 0 ({subject.flag('kl_loss_coef')} 0)"
    if subject.workload is not None:
        size = subject.workload.model.parameters() * 2
        text += f": {format_bytes(size)} in half precision for each copy of the model"
    instead = LEAVE_OUT["slime"] if subject.system in SLIME else LEAVE_OUT.get(subject.system, "")
    yield Sighting(text, subject.place("use_kl_loss", "kl_loss_coef"), instead=instead)


def _without_reward(subject: Subject) -> bool:
    """Whether no KL goes into the reward, which needs the reference as well."""
    if subject.system == "verl":
        rewarded = subject.last("algorithm.use_kl_in_reward")
        return rewarded is None or (rewarded.text or "").lower() in ("false", "0")
    return subject.found.value("kl_coef") in (0, None) and "kl_coef" not in subject.found.unknown


RULE = Rule(
    name="reference-at-zero",
    severity="warning",
    title="a reference model at coefficient 0",
    sees="`use_kl_loss` is on, its coefficient is 0, and no KL goes into the reward.",
    why="the switch alone decides whether the reference is loaded: a second copy of the parameters (in pinned host "
    "memory with slime and Miles), and a forward pass over every sample, for a number that is only plotted",
    example="python3 train.py --rollout-batch-size 8 --ref-load /m --use-kl-loss --kl-loss-coef 0.00",
    instead="switch the KL loss off; the gradient is the same",
    near_miss="python3 train.py --rollout-batch-size 8 --ref-load /m --kl-loss-coef 0.00",
    not_this="`--ref-load` without `--use-kl-loss` loads no reference: it is where a run without `--load` starts. "
    "TRL at `--beta 0` and OpenRLHF at `--init_kl_coef 0` load none either.",
    find=find,
)
