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


def _find(case: Case) -> Claim | None:
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
