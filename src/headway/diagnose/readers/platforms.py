"""What Kubernetes (`kubectl describe pod`, `get events`), Slurm (slurmstepd, sacct), LSF and PBS print."""

from headway.diagnose.sign import Sign

SIGNS = (
    Sign(
        "k8s-oomkilled",
        "end",
        ("oomkill", "oom killed", "oom-killed"),
        r"OOM[- _]?Kill(?:ed|ing)?\b",
        unless=r"memory\.events|oom_kill \d|step tasks|StepId|slurm|OOMKilled:? *(?:false|0)|OOMKilled\"?: ?false",
        says="the kernel killed a process of the container for memory",
    ),
    Sign(
        "k8s-evicted",
        "end",
        ("evicted", "the node was low on resource", "node had condition", "eviction manager", "evictionthresholdmet"),
        r"\bEvicted\b|low on resource: ?\[?(?P<what>[\w-]+)|node had condition: ?\[?(?P<condition>\w+)|"
        r"eviction manager|"
        r"EvictionThresholdMet",
        unless=r"worker evicted|cache|prefix|blocks? evicted|evicted \d+ (?:tokens|blocks)|lru",
        says="the kubelet ended the pod because the node was short of a resource, which it names",
    ),
    Sign(
        "k8s-preempted",
        "end",
        ("preempt", "spot instance", "spot interruption"),
        r"Reason:?\s*Preempt|\bPreempted by\b|Preempting\b|preempt(?:ed|ion) (?:notice|by|to accommodate)|"
        r"spot (?:instance )?(?:interruption|termination)|DisruptionTarget|"
        r"\b(?:instance|VM|machine|pod)\b[^.;]{0,60}\b(?:was|is being|has been|got) preempted",
        unless=r"SIGUSR|PreemptionMode|preemptively|recompute|sequence|retract|CANCELLED|gcs_|raylet|cache",
        says="the machine or the place on it was taken back for somebody else",
    ),
    Sign(
        "k8s-deleted",
        "why",
        (
            "stopping container",
            "deleting pod",
            "taintmanagereviction",
            "deletiontimestamp",
            "drain",
            "cordon",
            "killing container",
        ),
        r"Stopping container|Deleting pod|TaintManagerEviction|deletionTimestamp|\bdrain(?:ing|ed)?\b.{0,200}node|"
        r"node.{0,200}\bdrain|cordon",
        unless=r"scale.?down|unneeded",
        says="the pod was deleted or its node drained: SIGTERM comes first",
    ),
    Sign(
        "k8s-node-not-ready",
        "end",
        ("nodenotready", "node is not ready", "nodelost", "node status is now: nodenotready", "nodecontroller"),
        r"NodeNotReady|node is not ready|NodeLost",
        says="the node stopped answering the control plane",
    ),
    Sign(
        "k8s-deadline",
        "end",
        ("deadlineexceeded", "active deadline", "activedeadlineseconds"),
        r"Reason:\s*DeadlineExceeded|active deadline|job was active longer",
        unless=r"grpc|StatusCode",
        says="the job's time was over",
    ),
    Sign(
        "slurm-time",
        "end",
        (
            "due to time limit",
            "term_runlimit",
            "job killed: walltime",
            "time limit exhausted",
            "exceeded time limit",
            "reached time limit",
            "due to timeout",
        ),
        says="the scheduler ended the job at its time limit",
    ),
    Sign(
        "slurm-preempted",
        "end",
        ("due to preemption", "term_preempt", "job preempted"),
        says="the scheduler took the allocation back for another job",
    ),
    Sign(
        "slurm-requeue",
        "end",
        ("due to job requeue", "job requeued", "due to requeue"),
        says="the scheduler ended the job to start it again",
    ),
    Sign("slurm-node-fail", "end", ("due to node failure", "node_fail"), says="the scheduler lost a node of the job"),
    Sign(
        "slurm-cancel",
        "end",
        ("cancelled at", "cancelled by", "*** job", "*** step"),
        r"\*\*\* (?:JOB|STEP)\b|CANCELLED (?:AT|by)",
        says="the scheduler ended the job; a person's or program's cancel where no reason is given",
    ),
    Sign(
        "slurm-oom",
        "end",
        (
            "oom_kill event",
            "oom-kill event",
            "been oom killed",
            "exceeded step memory limit",
            "exceeded job memory limit",
            "exceeded memory limit",
            "term_memlimit",
            "out_of_me",
            ": out of memory",
        ),
        r"Detected \d+ oom[_-]kill event|oom[_-]kill event\(?s?\)? in|been OOM Killed|exceeded (?:step |"
        r"job )?memory limit|TERM_MEMLIMIT|"
        r"(?-i:\bOUT_OF_ME(?:MORY\b|\+))|srun: error: .{0,200}task[s]? [\d,-]+: Out Of Memory",
        unless=r"CUDA_ERROR|cudaError|Detected 0 ",
        says="the kernel killed a process of the step at the step's memory limit",
    ),
)
