"""Processes could not reach each other."""

import re

from headway.diagnose.case import Case
from headway.diagnose.rules import settle
from headway.diagnose.rules.rule import Advice, Claim, Rule

MECHANISMS = {"peer-lost", "collective-timeout", "python-exception", "gcs-lost", "node-lost", "engine-exit"}
SURE = (
    r"No route|unreachable|ibv_|completion with error|socket interface|Name or service|name resolution|NET/IB|"
    r"link|find network interface|connectFullMesh|Address family"
)


FIRST = re.compile(r"\bSeqNum=1\b.*?\bran for\b")
"""The first collective of a group, waited for in vain."""
RANK = re.compile(r"\bRank (\d+)\]")
PORT = Advice(
    "another port for each run and engine of the machine, or end what still listens (ss -ltnp)",
    "each meets its own", "none",
)  # fmt: skip
PATHS = Advice(
    "one run with NCCL_P2P_DISABLE=1 on one machine, or NCCL_IB_DISABLE=1 between machines, and NCCL_DEBUG=INFO",
    "if it then goes on, the direct path between the devices is what fails", "slower collectives",
)  # fmt: skip


def _find(case: Case) -> Claim | None:
    return _port(case) or _reached(case) or _first_collective(case)


def _port(case: Case) -> Claim | None:
    """An exception that says that a port is another's."""
    found = case.first("port-in-use")
    if found is None or case.mechanism not in MECHANISMS or found.place not in case.around:
        return None
    if not re.search(r"\w(?:Error|Exception)\b", found.place.text):
        return None
    return Claim("supported", "the port of a meeting or a server is another process's", (found.place,), (PORT,))


def _first_collective(case: Case) -> Claim | None:
    """Not even the first collective ended: where several ranks wait in the same one, all had come to it."""
    if case.mechanism != "collective-timeout":
        return None
    places = [each.place for each in case.evidence if FIRST.search(each.place.text)]
    if not places or case.step is not None:
        return None
    ranks = {found[1] for place in places if (found := RANK.search(place.text)) is not None}
    because = "the group's first collective never ended: its ranks do not reach each other"
    return Claim("supported" if len(ranks) > 1 else "open", because, (places[0],), (PATHS,))


def _reached(case: Case) -> Claim | None:
    found = case.first("network")
    if found is None or case.mechanism not in MECHANISMS or found.place not in case.around:
        late = case.first("store-timeout", "ray-unavailable")
        return (
            Claim("open", "not all processes could be reached", (late.place,))
            if late and case.mechanism in MECHANISMS | {"unknown"}
            else None
        )
    sure = re.search(SURE, found.place.text, re.IGNORECASE) is not None
    return Claim(
        "supported" if sure else "open", "the text names an address, a route or a broken link", (found.place,)
    )


RULE = Rule(
    name="network",
    level="cause",
    sees="'No route to host', 'no socket interface found', InfiniBand completions with errors, names that do not "
    "resolve.",
    why="A wrong interface (NCCL_SOCKET_IFNAME), a firewall, a port in use, a broken link.",
    sure="Supported by the system's words; 'Connection refused' alone is also what a dead server leaves.",
    look_alikes="'Connection reset by peer' is a peer that ended.",
    example="torch.distributed.DistBackendError: NCCL error, ncclSystemError: NCCL WARN Bootstrap : no socket "
    "interface"
    " found",
    near_miss="ncclRemoteError: remote process exited or there was a network error",
    advice=(
        Advice(
            "NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME and NCCL_IB_HCA by the node's real interfaces; test with nccl-tests",
            "names the pair that fails",
            "time",
        ),
    ),
    settle=(settle.EARLIER,),
    find=_find,
)
