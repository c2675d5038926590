"""A rerun that starts from step 0 though checkpoints are there."""

from collections.abc import Iterator

from headway.foreign.lint.rule import SLIME, Rule, Sighting, Subject

FLAGS = {
    "slime": ("load", "save"), "miles": ("load", "save"), "megatron": ("load", "save"),
    "openrlhf": ("load_checkpoint", "save_steps"),
}  # fmt: skip


def find(subject: Subject) -> Iterator[Sighting]:
    """Checkpoints are written and not read, or read from another place."""
    names = FLAGS.get(subject.system)
    if names is None or subject.hidden("load"):
        return
    saves = subject.last(names[1], "ckpt.save_steps") if subject.system == "openrlhf" else subject.last(names[1])
    if saves is None or (subject.system == "openrlhf" and (subject.number("save_interval") or -1) <= 0):
        return
    loads = subject.last(names[0], "ckpt.load_enable") if subject.system == "openrlhf" else subject.last(names[0])
    if loads is None:
        start = "from --ref-load" if subject.system in SLIME else "from the model it is given"
        reads = "ckpt.load_enable" if saves.name.startswith("ckpt.") else names[0]
        text = f"--{saves.name} without --{reads}: a rerun begins at step 0, {start}"
        yield Sighting(text, saves.at, instead=_instead(subject, reads, saves.text))
    elif subject.system != "openrlhf" and loads.text and saves.text and _path(loads.text) != _path(saves.text):
        text = f"--load {loads.text} is not what --save {saves.text} writes: a rerun begins from --load again"
        yield Sighting(text, loads.written, "note", instead=_instead(subject, "load", saves.text))


def _path(text: str) -> str:
    return text.rstrip("/")


def _instead(subject: Subject, flag: str, path: str | None) -> str:
    if subject.system == "openrlhf":
        return f"add --{flag}"
    first = f", and in the first run, where nothing is there yet, {subject.system} starts from --ref-load"
    return f"add --{flag} {path or 'the path of --save'}" + (first if subject.system in SLIME else "")


RULE = Rule(
    name="no-load",
    severity="warning",
    title="checkpoints that a rerun does not read",
    sees="checkpoints are written (`--save`), and no `--load` reads them; or `--load` names another folder.",
    why="after a death the same script starts over: slime and Miles take --ref-load, set the first rollout to 0 and "
    "leave optimizer and data position behind, and later saves go over the earlier ones",
    example="python3 train.py --rollout-batch-size 8 --ref-load /m --save /ckpt --save-interval 50",
    instead="add --load with the folder of --save",
    near_miss="python3 train.py --rollout-batch-size 8 --ref-load /m --load /ckpt/ --save /ckpt --save-interval 50",
    not_this="`--load` on a folder that is still empty is right: the first run then starts from `--ref-load`. verl "
    "(`trainer.resume_mode=auto`) resumes by itself.",
    find=find,
)
