"""A folder for checkpoints that is another one in every run."""

from collections.abc import Iterator

from headway.foreign.jobs import setter
from headway.foreign.lint.rule import Given, Rule, Sighting, Subject

FLAGS = (
    "save", "trainer.default_local_dir", "output_dir", "output-dir", "ckpt_path", "save_path", "ckpt.output_dir",
    "ckpt.path",
)  # fmt: skip
NEW_EVERY_TIME = {
    "date": "the time", "RANDOM": "a random number", "SECONDS": "the time", "EPOCHSECONDS": "the time",
    "$": "the number of the process", "BASHPID": "the number of the process", "uuidgen": "a random name",
    "mktemp": "a random name", "SLURM_JOB_ID": "the number of the job", "openssl": "a random text",
    "SLURM_JOBID": "the number of the job", "JOB_ID": "the number of the job",
}  # fmt: skip
"""What is another value in every run -> what it is."""


def find(subject: Subject) -> Iterator[Sighting]:
    """A path with a part that only the moment tells, or that nothing sets."""
    for given in {each.name: each for each in subject.given if each.name in FLAGS}.values():
        yield from _parts(given)


def _parts(given: Given) -> Iterator[Sighting]:
    holes = [hole for value in given.values for hole in value.holes]
    shown = " ".join(value.shown for value in given.values)
    dashes = "" if "." in given.name else "--"
    changing = [hole for hole in holes if hole.name in NEW_EVERY_TIME]
    if changing:
        what = ", ".join(dict.fromkeys(NEW_EVERY_TIME[hole.name] for hole in changing))
        yield Sighting(
            f"{dashes}{given.name} {shown} has {what} in it: every run has a folder of its own", given.written
        )
    unset = [hole for hole in holes if hole.kind in ("unset", "unread") and not hole.name.isdigit()]
    unset = [hole for hole in unset if hole not in changing and not setter(hole.name)]
    if unset:
        names = ", ".join(dict.fromkeys(f"${hole.name}" for hole in unset))
        empty = "".join(part for value in given.values for part in value.parts if isinstance(part, str))
        yield Sighting(
            f"{dashes}{given.name} {shown}: {names} is set nowhere in the script, so that the path is "
            f"{empty or 'empty'} unless whoever starts it sets it",
            given.written,
            why="a run that was started with the variable and one without do not find each other's checkpoints, and "
            "all runs without it write into one folder",
            instead=f"set {names} in the script, to the same value for a rerun",
        )  # fmt: skip


RULE = Rule(
    name="save-path",
    severity="warning",
    title="a checkpoint folder that a rerun does not find",
    sees="the path for checkpoints has `$(date)`, `$RANDOM`, `$$`, a job's number or a variable that nothing sets.",
    why="a rerun after a death looks for its checkpoints in a folder that is not there, and starts over; what was "
    "saved stays on the disk beside it",
    example="NAME=run-$(date +%m%d-%H%M)\npython3 train.py --rollout-batch-size 8 --load /c/$NAME --save /c/$NAME",
    instead="name the folder for the experiment, and give a new name by hand where a new run is meant",
    near_miss="NAME=${NAME:-first}\npython3 train.py --rollout-batch-size 8 --load /c/$NAME --save /c/$NAME",
    not_this="a variable with a default is the same in every run; a time in the name of a log or a W&B group costs "
    "nothing.",
    find=find,
)
