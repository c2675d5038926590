"""Commands that end the runs of others on the same node."""

import re
from collections.abc import Iterator, Sequence

from headway.foreign.lint.rule import Rule, Sighting, Subject
from headway.foreign.shell.values import Word

KILLERS = ("pkill", "killall")
BEHIND = ("sudo", "nohup", "env", "exec", "timeout", "time")
SHARED = ("python", "ray", "sglang", "vllm", "torchrun", "redis", "gcs_server", "raylet", "accelerate", "deepspeed")
"""Names that another's run on the node has as well."""
TAKES_VALUE = ("-u", "-U", "-g", "-P", "-t", "-s", "-G", "--signal", "--user", "--euid", "--uid")
OF_A_USER = ("-u", "-U", "--user", "--euid", "--uid")

_KILL = re.compile(r" (?:-|-s ?|--signal[ =])(?:9|(?:SIG)?KILL)\b")


def find(subject: Subject) -> Iterator[Sighting]:
    """`pkill`, `killall` and `ray stop` among the commands that the script would run."""
    for command in subject.commands:
        words = [item.shown for item in command.argv if isinstance(item, Word)]
        while words and words[0].rpartition("/")[2] in BEHIND:
            words = words[1:]
        told = _kills(words) if words else ""
        if told:
            yield Sighting(f"{' '.join(words)[:80]}: {told}", command.at)


def _kills(words: Sequence[str]) -> str:
    """What a command ends on the node; empty where it ends nothing of others."""
    program, rest = words[0].rpartition("/")[2], list(words[1:])
    if program == "ray":
        signal = "SIGKILL" if {"--force", "-f"} & set(rest) else "SIGTERM"
        return f"ends every Ray process of this user on the node by {signal}" if "stop" in rest[:1] else ""
    if program not in KILLERS:
        return ""
    names, only_own = [], False
    while rest:
        word = rest.pop(0)
        if word in TAKES_VALUE:
            only_own = only_own or word in OF_A_USER
            rest = rest[1:]
        elif not word.startswith("-"):
            names.append(word)
    hit = [name for name in names if _shared(name)]
    whose = "of this user" if only_own else "that this user may end"
    signal = "SIGKILL" if _KILL.search(" ".join(words)) else "the signal that it names, SIGTERM where it names none"
    return f"ends every process {whose} whose name matches {', '.join(hit)} by {signal}" if hit else ""


def _shared(pattern: str) -> bool:
    """Whether a pattern is a bare name that other runs have: a path or a script's own name is not."""
    plain = pattern.strip("'\"^$").removesuffix("*").removesuffix(".").rstrip("0123456789.").lower()
    return plain in SHARED or pattern.startswith(("ray::", "sglang::", "VLLM::"))


RULE = Rule(
    name="kills-others",
    severity="warning",
    title="a launch that ends other runs on the node",
    sees="`pkill` or `killall` of a name such as python, ray, sglang or vllm, or `ray stop`.",
    why="it ends whatever else runs on the node under that name, a colleague's run or the last launch of this "
    "script; its Ray workers then report a SIGTERM, in Kubernetes with a sentence on memory limits, though "
    "no memory ran out",
    example="pkill -9 sglang\nray stop --force\npython3 train.py --rollout-batch-size 8",
    instead="end what this script started by its own process numbers, or give each run its own node, and Ray its own "
    "port and --temp-dir",
    near_miss='# pkill -9 python\necho "to clean up: pkill -9 python"\npkill -f /home/me/my_rm_server.py\n'
    "python3 train.py --rollout-batch-size 8",
    not_this="a comment or an echo runs nothing; `pkill -f` of a program's own path and `kill $PID` end one program.",
    find=find,
)
