"""A batch is held whole."""

from headway.diagnose.case import Case
from headway.diagnose.evidence import Grade
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule

HOST = {"ray-memory-monitor", "cgroup-oom-kill", "kernel-oom-kill", "oom-daemon", "host-allocation-failure"}
CALLS = (
    r"rollout_data|routed_experts|DataProto|collate|pad_sequence|split_data|concat\w*\(|"
    r"multi_modal"
)


def _find(case: Case) -> Claim | None:
    if case.mechanism not in HOST or case.refusal.impossible:
        return None
    place = case.frame(CALLS)
    if place is None:
        return None
    grade: Grade = "supported" if case.mechanism == "host-allocation-failure" else "open"
    return Claim(grade, "the request came from code that moves or joins rollout data", (place,))


RULE = Rule(
    name="host-memory-data-spike",
    level="cause",
    sees="A refusal or kill in code that gathers, joins or broadcasts rollout data.",
    why="Images, routed-expert ids or log-probs of a whole batch are copied to one controller or to every rank.",
    sure="Supported where the refused request names the call; open for a kill.",
    look_alikes="Data loading of the whole data set at start.",
    example='MemoryError\n  File "/app/data.py", line 7, in process_rollout_data\n    batch = '
    "ray.get(rollout_data_ref)",
    near_miss='MemoryError\n  File "/app/model.py", line 7, in load_checkpoint\n    state = torch.load(path)',
    advice=(
        Advice(
            "send each rank its own slice; smaller rollout batches", "no whole copy", "more steps", "smaller-batch"
        ),
    ),
    settle=(settle.MEMORY,),
    find=_find,
)
