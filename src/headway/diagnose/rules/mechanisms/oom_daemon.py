"""A user-space guard ended the process."""

from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule

RULE = Rule(
    name="oom-daemon",
    level="mechanism",
    tier=0,
    sees="earlyoom's 'low memory! at or below SIGTERM limits', 'sending SIGTERM to process', or systemd-oomd's "
    "kill line.",
    why="These daemons act before the kernel does: earlyoom by free memory and swap, systemd-oomd by pressure.",
    sure="Their own lines prove it. earlyoom is one of the two memory causes that can print a SIGTERM text.",
    look_alikes="A start-up line of the daemon ('earlyoom 1.7', 'Started systemd-oomd') is no kill.",
    example='earlyoom[812]: sending SIGTERM to process 4242 uid 0 "python3": badness 912, VmRSS 61000 MiB',
    near_miss="systemd[1]: Started systemd-oomd.service - Userspace Out-Of-Memory (OOM) Killer.",
    refuters=("the daemon is not installed, or its log is silent at that time",),
    advice=(
        Advice(
            "lower the run's memory; or exempt it (--avoid, ManagedOOMPreference=omit)",
            "the guard takes another process",
            "the machine may hang instead",
        ),
    ),
    settle=(settle.JOURNAL,),
    ends={"oom-daemon": "proven"},
)
