"""Nothing shows how it ended."""

from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Rule

RULE = Rule(
    name="unknown",
    level="mechanism",
    tier=5,
    sees="No line that says how a process ended, or only symptoms and constant sentences.",
    why="The log is cut, the process that ended writes elsewhere, or nothing ended.",
    sure="Open, and a right answer until another file is read.",
    look_alikes="-",
    example="step 74: reward 0.5",
    near_miss="The process receives a SIGTERM.",
    settle=(settle.DMESG, settle.RAYLET, settle.STDERR, settle.POD, settle.DOCKER, settle.SLURM),
)
