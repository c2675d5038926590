"""What collectives print: torch's ProcessGroupNCCL, NCCL itself, gloo, and the store at the start.

Wordings: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, TCPStore.cpp, NCCL's src/misc/socket.cc and transport/."""

from headway.diagnose.sign import Sign

SIGNS = (
    Sign(
        "collective-timeout",
        "end",
        (
            "collective operation timeout",
            "timed out in blocking wait",
            "watchdog caught collective",
            "timed out waiting",
            "watchdog got stuck",
            "collective timeout",
            "communicator timed out",
            "detected by watchdog at work",
            "timeout at nccl work",
            "watchdog hang",
            "worknccl(",
        ),
        r"collective operation timeout|WorkNCCL\(.{0,200}ran for|blocking wait|watchdog caught collective|"
        r"watchdog got stuck|"
        r"Timed out waiting \d+ ?ms for (?:recv|send)|collective timeout|communicator timed out|"
        r"detected by watchdog at work|Timeout at NCCL work|watchdog hang|WorkNCCL\(.{0,200}Timeout\(ms\)=\d+\)",
        says="a collective waited too long: some rank did not come",
    ),
    Sign(
        "collective-operation",
        "context",
        ("worknccl(", "optype=", "_allgather_base", "_reduce_scatter_base", "coalesced"),
        r"OpType=(?P<op>\w+)|(?P<name>_?(?:ALLGATHER|REDUCE_SCATTER|ALLREDUCE|BROADCAST)\w*)",
        says="which collective it was",
    ),
    Sign(
        "collective-teardown",
        "symptom",
        (
            "taking the entire process down",
            "failure detected by watchdog",
            "process group watchdog thread terminated",
            "to avoid data inconsistency",
            "some nccl operations have failed",
        ),
        says="the watchdog ends its own process, SIGABRT; the reason is before",
    ),
    Sign(
        "peer-lost",
        "end",
        (
            "remote process exited or there was a network error",
            "connection closed by remote peer",
            "connection closed by localrank",
            "connection reset by peer",
            "ncclremoteerror",
            "socket closed by peer",
            "closed by peer",
            "recv returned 0 bytes",
        ),
        says="a collective or a store failed because the other side was gone; that one went first",
    ),
    Sign(
        "network",
        "why",
        (
            "no route to host",
            "network is unreachable",
            "connection refused",
            "no socket interface found",
            "ibv_",
            "got completion with error",
            "name or service not known",
            "temporary failure in name resolution",
            "nccl warn net/ib",
            "failed to connect to any address",
            "connection timed out",
            "connectfullmesh",
            "client socket has timed out",
            "unable to find network interface",
            "link down",
            "errno 111",
            "errno 113",
            "address family not supported",
            "nodename nor servname",
        ),
        r"No route to host|Network is unreachable|Connection refused|No socket interface|"
        r"ibv_\w{1,40}\b.{0,200}?(?:fail|"
        r"error|timed out)|"
        r"completion with error|Name or service not known|name resolution|NET/IB.{0,200}(?:error|fail|down|timeout)|"
        r"failed to connect|Connection timed out|connectFullMesh|client socket has timed out|find network interface|"
        r"link (?:is )?down|Errno 11[13]|Address family not supported|nodename nor servname",
        unless=r"prometheus|wandb|retry(?:ing)? (?:in|\d)|attempt \d|metrics",
        says="processes could not reach each other",
    ),
    Sign(
        "port-in-use",
        "why",
        ("address already in use", "eaddrinuse", "errno 98", "invalid nonce returned"),
        says="something else listens on the port, or answered at it",
    ),
    Sign(
        "store-timeout",
        "end",
        ("diststoreerror", "waiting for clients", "store wait timeout", "storetimeout", "wait timeout after"),
        r"DistStoreError|waiting for clients|wait timeout after \d+ ?ms|Timed out after \d+ seconds waiting",
        says="not all ranks came to the meeting at the start",
    ),
    Sign(
        "nccl-oom",
        "end",
        (
            "cuda failure 'out of memory'",
            "cuda failure 2 'out of memory'",
            "failed to cuda calloc",
            "failed to cuda malloc",
            "nccl warn",
            "ncclunhandledcudaerror",
        ),
        r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA [mc]alloc|NCCL.{0,200}out of memory|"
        r"ncclUnhandledCudaError.{0,200}out of memory",
        says="NCCL found no device memory for its buffers",
    ),
    Sign(
        "nccl-error",
        "end",
        ("ncclunhandledcudaerror", "ncclsystemerror", "ncclinternalerror", "distbackenderror", "ncclinvalidusage"),
        r"nccl(?:UnhandledCuda|System|Internal)Error|ncclInvalidUsage|DistBackendError",
        unless=r"out of memory|remote process exited|watchdog",
        says="NCCL failed; its own WARN lines say where",
    ),
    Sign(
        "heartbeat-monitor",
        "symptom",
        ("heartbeatmonitor", "heartbeat monitor"),
        r"HeartbeatMonitor|heartbeat monitor",
        says="torch's watchdog of its watchdog",
    ),
)
