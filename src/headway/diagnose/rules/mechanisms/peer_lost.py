"""A remote rank was gone."""

from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Rule

RULE = Rule(
    name="peer-lost",
    level="mechanism",
    tier=3,
    sees="'remote process exited or there was a network error', 'Connection closed by remote peer', 'Connection "
    "reset by peer'.",
    why="A rank ended and the system closed its connections; the others' collectives fail at once.",
    sure="Supported: a broken link looks the same. The rank that this one talked to went first.",
    look_alikes="A collective's timeout means a peer that lives or hangs, or was never there.",
    example="ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely. "
    "remote process exited or there was a network error",
    near_miss="Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLGATHER)",
    refuters=("every rank's log ends with the same text: then the link broke",),
    advice=(Advice("read the log of the rank that is silent", "it ended first", "none"),),
    settle=(settle.EARLIER, settle.DMESG),
    ends={"peer-lost": "supported"},
)
