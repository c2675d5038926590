"""What a death costs: how far apart saves are, against evaluation, and what was due at the step where a run ended."""

from collections.abc import Iterator

from headway.foreign.lint.rule import SLIME, Rule, Sighting, Subject

_ROLLOUTS = (
    "rollouts are numbered from 0, and both are done after a rollout whose number + 1 is a multiple, the save before "
    "the evaluation"
)
COUNTS = {
    "slime": _ROLLOUTS,
    "miles": _ROLLOUTS,
    "verl": "steps are counted from 1; newer versions save before they validate in the same step, older ones after",
    "trl": "optimizer steps are counted from 1; evaluation comes before the save of the same step",
    "openrlhf": "steps are counted from 1; evaluation comes before the save of the same step",
    "megatron": "iterations are counted from 1; evaluation comes before the save of the same iteration",
}
"""How each system counts: slime's and Miles's train.py and should_run_periodic_action; verl's ray_trainer.fit;
transformers' DefaultFlowCallback; OpenRLHF's save_logs_and_checkpoints; Megatron's training loop."""


def find(subject: Subject) -> Iterator[Sighting]:
    """Saves that are rarer than evaluations, none at all, and what was due at a step."""
    save, evaluate = _interval(subject, "save_interval"), _interval(subject, "eval_interval")
    unit = "rollouts" if subject.system in SLIME else "steps"
    place = subject.place("save_interval", "eval_interval")
    if subject.at_step is not None and (save or evaluate):
        yield Sighting(_due(subject, subject.at_step, save, evaluate, unit), place, "note", COUNTS[subject.system])
    elif save and evaluate and evaluate < save:
        text = f"evaluation every {evaluate} {unit}, a save every {save}: a death costs up to {save} {unit}"
        yield Sighting(text, place)
    if not save and _never_saves(subject):
        yield Sighting(
            "no checkpoint is written on the way: a death costs the whole run", subject.found.at,
            instead=f"set {subject.flag('save_interval')}",
        )  # fmt: skip


def _interval(subject: Subject, key: str) -> int | None:
    return subject.count(key) if subject.system in COUNTS else None


def _never_saves(subject: Subject) -> bool:
    """Whether nothing is saved, as far as every word of the command is known."""
    if "save_interval" in subject.found.unknown or subject.hidden("save_interval"):
        return False
    if subject.system in SLIME:
        return subject.found.settings.get("save_interval") is None
    value = subject.found.value("save_interval")
    return subject.system in ("verl", "openrlhf") and isinstance(value, int) and value <= 0


def _due(subject: Subject, step: int, save: int | None, evaluate: int | None, unit: str) -> str:
    """What was due after so many steps, and what was saved last."""
    said = [f"after {step} {unit}{f' (numbers 0 to {step - 1})' if subject.system in SLIME and step else ''}:"]
    for name, interval in (("save", save), ("evaluation", evaluate)):
        if interval is None:
            said.append(f"no {name} is set;")
            continue
        last = step // interval * interval
        due = (
            f"{name} (every {interval}) was due"
            if last == step and step
            else f"{name} (every {interval}) was not due"
        )
        before = f"the last at {last}" if last and last != step else "none before it" if not last else ""
        said.append(f"{due}{f', {before}' if before else ''};")
    if save is not None:
        last = step // save * save
        lost = step - last
        both = bool(step) and lost == 0
        kept = f"the save of {step} if it was complete, else {max(0, step - save)}" if both else str(last)
        there = f"what there is to resume from is {kept}" if last else "there is nothing to resume from"
        said.append(there + ("" if both else f", {lost} {unit} are lost"))
    return " ".join(said).rstrip(";")


RULE = Rule(
    name="intervals",
    severity="note",
    title="saves that are far apart",
    sees="evaluation is more frequent than saving, or nothing is saved; with `--at-step N`, what was due when a run "
    "had done N steps.",
    why="evaluation loads the engine and the host more than a training step does, so a death is likely there, and "
    "what was done since the last save is lost",
    example="python3 train.py --rollout-batch-size 8 --load /c --save /c --save-interval 50 --eval-interval 5",
    instead="save as often as it is evaluated, or at least where a lost stretch is bearable",
    near_miss="python3 train.py --rollout-batch-size 8 --load /c --save /c --save-interval 5 --eval-interval 20",
    not_this="slime and Miles also evaluate and save at the end of an epoch of the prompts and after the last "
    "rollout, whatever the intervals are.",
    find=find,
)
