"""A collective waited too long."""

from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule, Settle

RULE = Rule(
    name="collective-timeout",
    level="mechanism",
    tier=2,
    sees="'Watchdog caught collective operation timeout: WorkNCCL(SeqNum=, OpType=', and the abort that follows.",
    why="Some rank did not come to the collective: it died, was busy, took another branch, or its network "
        "failed. The "
    "watchdog of the others then ends their own processes by SIGABRT.",
    sure="Proven. It says that a peer did not arrive, not which: the rank that reports nothing, or whose last "
        "enqueued "
    "work is the last completed, is the late one.",
    look_alikes="'remote process exited or there was a network error' is a peer that was gone at once.",
    example="[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, "
        "Timeout(ms)=600000) ran for 600012 ms",
    near_miss="NCCL WARN socketProgress: Connection closed by remote peer",
    refuters=("a rank's traceback is older than the timeout's start",),
    advice=(
        Advice("find the late rank before raising the timeout", "a longer wait only helps slow ranks", "none"),
        Advice(
            "raise the time-out of collectives where one rank does slow work alone, as a save or a reward",
            "the others wait",
            "a true hang is seen later", "timeout",
        ),
    ),
    settle=(
        Settle("TORCH_NCCL_TRACE_BUFFER_SIZE=2000 in the next run", "flight recorder files of all ranks",
 "the rank whose last "
            "collective is older"),
        settle.EARLIER,
    ),
    ends={"collective-timeout": "proven"},
)  # fmt: skip
