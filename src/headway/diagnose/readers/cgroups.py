"""Files of a memory cgroup: v2's memory.events, v1's memory.oom_control. A count of kills refutes or supports a kill.

Meaning of the fields: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the kernel."""

from headway.diagnose.sign import Sign

SIGNS = (
    Sign(
        "cgroup-kills",
        "context",
        ("oom_kill ",),
        r"^\s*(?:\S*memory\.events\S*[: ]+)?oom_kill (?P<count>\d+)\s*$",
        says="how many processes of the group the kernel killed for memory: 0 refutes such a kill",
    ),
    Sign(
        "cgroup-oom",
        "context",
        ("oom ",),
        r"^\s*(?:\S*memory\.events\S*[: ]+)?oom (?P<count>\d+)\s*$",
        says="how often the group was at its limit with nothing to reclaim",
    ),
    Sign(
        "cgroup-failcnt",
        "context",
        ("failcnt",),
        r"failcnt[: ]+(?P<count>\d+)",
        says="how often use met the limit (v1)",
    ),
)
