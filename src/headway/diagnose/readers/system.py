"""What the C library, Python, shells, the kernel and the NVIDIA driver print.

Wordings: glibc, Python's faulthandler, absl's failure signal handler, mm/oom_kill.c, earlyoom, systemd-oomd, NVRM."""

from headway.diagnose.sign import Sign


def _shell(word: str, number: int) -> str:
    """What a shell says of a command that a signal ended: bash with its line and the process, or as a job; zsh; dash
    the word alone, which may stand behind a progress bar. Words of a program that only begin like it are none."""
    core, line = r"(?: *\(core dumped\))?", rf"^\s*\S.{{0,200}}?: \w+ \d+: +(?P<pid>\d+):? +{word}"
    job = rf"^\s*\[\d+\] *[-+]? +(?:(?P<job>\d+) +)?{word}"
    alone = rf"(?:^\s*|(?:it/s|s/it|\?)\]\s*|^\s*\w*sh: |^\s*\S+: \d+: ){word}(?:: {number})?\.?$"
    return rf"{line}{core}(?: +(?P<command>\S.*))?$|{job}{core}(?: +\S.*)?$|^\s*zsh: {word} +\S|{alone}"


_HARDWARE_XIDS = "46|48|62|63|64|74|79|92|94|95|119|120|121|136|140|143"

SIGNS = (
    Sign(
        "crash-signal",
        "end",
        (
            "sigsegv",
            "sigbus",
            "sigabrt",
            "sigill",
            "sigfpe",
            "segmentation fault",
            "fatal python error",
            "bus error",
            "aborted (core dumped)",
            "core dumped",
            "double free",
            "corrupted size vs",
            "munmap_chunk",
            "stack smashing",
            "malloc(): ",
            "free(): invalid",
            "illegal instruction",
            "floating point exception",
            "caught signal 11",
            "caught signal 7",
            "unhandled signal",
            "terminated by signal 11",
            "exit status 139",
            "exit code 139",
            "exit code 134",
            "exit code -11",
            "exit code -6",
            "returned 139",
            "exit code: -11",
            "exit code: 139",
        ),
        r"\*\*\* (?P<signal>SIG(?:SEGV|BUS|ABRT|ILL|FPE)) |Fatal Python error: (?P<python>[\w ]+)|"
        r"(?P<word>segmentation fault|"
        r"bus error|core dumped|double free|corrupted size|munmap_chunk|stack smashing|malloc\(\): |"
        r"free\(\): invalid|"
        r"illegal instruction|floating point exception)|Caught signal (?P<ucx>\d+)|\b(?P<name>SIG(?:SEGV|BUS|"
        r"ABRT|ILL|FPE))\b|"
        r"(?:exit (?:code|status):? ?|returned )(?P<code>-?(?:139|134|135|11|6|7))\b",
        unless=r"\(3\) the worker is SIGSEGV|SIGSEGV or another unexpected|potential root causes|reasons include|"
        r"common causes include|"
        r"SIGKILL by OOM|received by PID|KeyboardInterrupt",
        says="native code ended the process by this signal",
    ),
    Sign(
        "terminate-called",
        "end",
        ("terminate called",),
        r"terminate called (?:after throwing an instance of '(?P<what>[^']+)'|without)",
        says="a C++ exception that nobody caught, which ends in SIGABRT",
    ),
    Sign("native-frame", "context", ("segfault at",), says="the kernel's line about a crash"),
    Sign(
        "kernel-cgroup-oom",
        "end",
        (
            "memory cgroup out of memory",
            "constraint_memcg",
            "killed as a result of limit of",
        ),
        r"Memory cgroup out of memory|CONSTRAINT_MEMCG|as a result of limit of",
        says="the kernel killed a process because its memory cgroup reached its limit",
    ),
    Sign(
        "kernel-cgroup-frame",
        "end",
        ("mem_cgroup_out_of_memory", "try_charge", "mem_cgroup_oom_synchronize", "memory cgroup stats for"),
        r"Memory cgroup stats for|\b(?:mem_cgroup_out_of_memory|try_charge(?:_memcg)?|"
        r"mem_cgroup_oom_synchronize)(?:\.\w+)*\+0x",
        unless=r"\? \w+(?:\.\w+)*\+0x",
        says="the kernel's search for a victim began in a memory cgroup's charge",
    ),
    Sign(
        "kernel-oom",
        "end",
        (
            "out of memory: kill",
            "out of memory (oom_kill",
            "constraint_none",
            "constraint_cpuset",
            "constraint_memory_policy",
        ),
        r"(?<!cgroup )out of memory(?: \(oom_kill_allocating_task\))?: Kill|constraint=CONSTRAINT_(?:NONE|"
        r"(?P<nodes>CPUSET|MEMORY_POLICY))",
        unless=r"cgroup out of memory",
        says="the kernel killed a process because the machine, or what of it the process may use, ran out of memory",
    ),
    Sign(
        "kernel-killed",
        "end",
        ("killed process", "oom_reaper: reaped", "memory.oom.group set"),
        r"\bKilled process \d+.{0,60}\b(?:total-vm|anon-rss):|oom_reaper: reaped process|"
        r"due to memory\.oom\.group set",
        unless=r"out of memory",
        says="the kernel killed a process for memory; whether a cgroup's or the machine's is not said in this line",
    ),
    Sign(
        "kernel-victim",
        "context",
        ("killed process", "anon-rss"),
        r"Killed process (?P<pid>\d+)(?:,? UID:? \d+)?,? \((?P<name>[^)]*)\).{0,200}?(?:anon-rss:(?P<rss>\d+)kB)?",
        says="whom the kernel killed",
    ),
    Sign(
        "kernel-victim",
        "context",
        ("oom-kill:constraint",),
        r"oom-kill:constraint=.{0,400}\btask=(?P<name>[^,]+),pid=(?P<pid>\d+)",
        says="whom the kernel is about to kill",
    ),
    Sign(
        "kernel-invoked",
        "context",
        ("invoked oom-killer",),
        r"(?P<name>\S+) invoked oom-killer",
        says="who asked for memory when there was none",
    ),
    Sign(
        "oom-daemon",
        "end",
        (
            "sigterm limits",
            "sigkill limits",
            "earlyoom",
            "systemd-oomd",
            "oomd killed",
            "oomd: killed",
            "sending sigterm to process",
            "sending sigkill to process",
            "due to memory pressure for",
            "due to memory used",
            "nohang",
        ),
        r"(?:at or below SIG(?:TERM|KILL) limits|sending SIG(?:TERM|KILL) to process|"
        r"systemd-oomd.{0,200}[Kk]ill(?!er)|oomd\S* ?:? ?[Kk]illed|"
        r"Killed .{0,200}due to memory (?:pressure|used)|nohang.{0,200}SIG)",
        says="a user-space guard ended the process under memory pressure",
    ),
    Sign(
        "xid-hardware",
        "why",
        ("xid",),
        rf"Xid\b[^:\n(]{{0,20}}(?:\([^)]{{0,60}}\))?:? ?:? ?(?P<xid>{_HARDWARE_XIDS})\b",
        says="the driver reports a fault of the device or its firmware: drain the machine",
    ),
    Sign(
        "xid",
        "context",
        ("xid",),
        r"Xid\b[^:\n(]{0,20}(?:\([^)]{0,60}\))?:? ?:? ?(?P<xid>\d+)\b",
        says="the driver reports an error; 13, 31 and 43 mostly come from the application, 45 from clean-up",
    ),
    Sign(
        "killed",
        "end",
        ("killed", "signal 9", "sigkill"),
        _shell("Killed", 9) + r"|\bSignal 9\b|signal: 9\b|(?:by|with|signal:?|by signal) SIGKILL|"
        r"\b(?:tasks?|pid|process) [\d,-]+: Killed$",
        unless=r"\(1\)|root causes|causes include|Killed process|Xid|unit|oomd",
        says="SIGKILL; by whom is not said",
    ),
    Sign(
        "exit-137",
        "end",
        ("exit code", "exit status", "exited with", "returncode", "return code", "rc=", "exited (", "exit_code"),
        r"(?:exit(?:ed)?(?: with)?(?:[ _]code| status)?|returncode|return code|rc|status)\W{0,4}(?:137|-9)\b|"
        r"Exit Code:\s*137",
        says="SIGKILL (128 + 9); by whom is not said",
    ),
    Sign(
        "exit-143",
        "end",
        ("exit code", "exit status", "exited with", "returncode", "return code", "rc=", "exited (", "exit_code"),
        r"(?:exit(?:ed)?(?: with)?(?:[ _]code| status)?|returncode|return code|rc|status)\W{0,4}(?:143|-15)\b|"
        r"Exit Code:\s*143",
        says="SIGTERM (128 + 15)",
    ),
    Sign(
        "terminated",
        "end",
        ("terminated", "sigterm"),
        _shell("Terminated", 15) + r"|(?:received|caught|got) (?:signal )?(?:SIGTERM|15\b)|"
        r"(?:by|with|signal:?) SIGTERM|SIGTERM (?:received|caught)|signal 15",
        unless=r"raylet|death signal|main\.cc|process receives|\*\*\*|Stop: |unexpected|terminated with|"
        r"closing signal|Unable to shutdown process",  # torchrun ends the other ranks of one that failed
        says="SIGTERM; by whom is not said",
    ),
    Sign(
        "hangup",
        "end",
        ("sighup", "hangup"),
        r"SIGHUP|^\s*Hangup",
        unless=r"\(1\)|nohup|black box: ",
        says="the terminal or session closed",
    ),
    Sign(
        "thread-limit",
        "end",
        (
            "resource temporarily unavailable",
            "can't start new thread",
            "[system:11]",
            "pthread_create failed",
            "fork: retry",
            "thread creation failed",
            "rejected by pids controller",
            "failed to start thread",
            "cannot create thread",
            "unable to create new native thread",
            "libgomp: thread creation",
        ),
        unless=r"BlockingIOError.{0,200}\bread\b|\bread\b.{0,200}Resource temporarily",
        says="the limit of processes or threads is reached",
    ),
    Sign(
        "file-limit", "end", ("too many open files", "errno 24", "emfile"), says="the limit of open files is reached"
    ),
    Sign(
        "disk-full",
        "end",
        (
            "no space left on device",
            "errno 28",
            "storagefull",
            "disk quota exceeded",
            "errno 122",
            "enospc",
            "pytorchstreamwriter failed writing",
            "disk full",
            "disk is full",
            "not enough disk space",
            "file write failed",
        ),
        r"No space left|Errno 28|StorageFull|quota exceeded|Errno 122|ENOSPC|PytorchStreamWriter failed|"
        r"disk (?:is )?full|"
        r"not enough disk|file write failed",
        unless=r"/dev/shm|shared memory",
        says="the target file system has no space left",
    ),
    Sign(
        "usage-error",
        "end",
        ("error: unrecognized arguments", "error: argument ", "error: the following arguments are required"),
        says="argparse refused the command line and called exit",
    ),
    Sign(
        "kernel-hung",
        "context",
        ("blocked for more than",),
        says="a task waited long for the kernel, often a device or a disk",
    ),
    Sign(
        "reboot",
        "why",
        (
            "system is going down",
            "reboot: ",
            "kernel panic",
            "watchdog: bug: soft lockup",
            "power button",
            "linux version ",
        ),
        r"going down|reboot: |Kernel panic|soft lockup|power button|^\W*\d*\.?\d*\]? ?Linux version",
        says="the machine went down or started",
    ),
)
