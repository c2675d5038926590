"""Where a run was, as far as its log and its settings show: which trainer, which engine, which platforms.

Nothing is taken from a word alone: a folder, an environment or a user may be called after any of them. A trainer
shows by its package's own folders, modules, actors or command lines, a platform by its own programs and texts.
"""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from headway.diagnose.evidence import Evidence
from headway.diagnose.frameworks import FRAMEWORKS, ON_RAY, VARIANTS, of_system
from headway.diagnose.settings import Settings

ENGINES = {
    "vllm": r"(?:^|[/\\\"' ])vllm[/\\](?!__)|\bEngineCore|VllmWorker|\bpynccl|warming up sampler|"
    r"\bvllm\.(?:v1|engine|worker|entrypoints)\b|vLLM API server",
    "sglang": r"(?:^|[/\\\"' ])sglang[/\\]|sglang::|\bsglang\.(?:srt|launch_server)\b|--mem-fraction-static|"
    r"\bScheduler hit an exception",
}
"""Engine -> what only its own code or texts look like."""

_VLLM_PROCESS = r"EngineCore\w*|APIServer\w*|ApiServer\w*|DPCoordinator|VllmWorker[^()]{0,20}|Worker(?:_[A-Z]+\d+)*"
"""What vLLM puts before the lines of its processes, in the form that Ray uses for actors: `(EngineCore_0 pid=12)`."""

_PLATFORMS = {
    "kubernetes": r"(?i:kube)|\bK8s\b|\[pod/|(?<![\w-])[Pp]ods?[ /][\"']?(?!v\d)[a-z0-9]+-|\bEvicted\b|"
    r"NodeNotReady|TaintManagerEviction|"
    r"DisruptionTarget|Stopping container |Reason:\s+OOMKilled|reason: OOMKilled|"
    r"(?<![\w.\"'])OOMKilled\b(?![\"']|: ?(?:true|false))",
    "docker": r"\bdocker (?:run|compose|inspect|exec|logs|start)\b|\bdocker-compose\b|\bdocker: |"
    r"(?m:^[a-z][\w.-]{0,60}-\d+ +\| |^[a-z][\w.-]{0,60}-\d+ exited with code \d+$)|/docker[/-][0-9a-f]{12}|"
    r"\bdocker(?:d)?\[\d+\]|\bpodman (?:run|inspect)\b|\"OOMKilled\":|State\.OOMKilled",
    "slurm": r"(?i:slurm)|#SBATCH\b|\bsrun\b|\bsbatch\b|\bsalloc\b|\bscancel\b|\bStepId=|\*\*\* (?:JOB|STEP) \d",
    "lsf": r"\bTERM_(?:RUNLIMIT|MEMLIMIT|OWNER|PREEMPT|EXTERNAL_SIGNAL)\b|\bbsub\b|\bLSB_\w+|#BSUB\b",
    "pbs": r"=>> PBS|\bPBS_(?:JOBID|NODEFILE)\b|\bqsub\b|\bpbs_mom\b|#PBS\b",
    "ray": r"\bray::|\braylet\b|\bray\.exceptions\.|/tmp/ray/|"
    r"(?:^|[/\"'])ray/(?:_private|_raylet|util|worker|air|train)|"
    r"\bRAY_[a-zA-Z]\w+|\bray (?:start|status|stop|job|up)\b|\bActorDiedError\b|\bRayTaskError\b|\bRayActorError\b|"
    r"\bgcs_server\b|(?m:^\(pid=\d+\) )|\([\w.: -]{0,80}pid=\d+, ip=[\d.]+|\(autoscaler\b|"
    rf"\((?!(?:{_VLLM_PROCESS}) pid=)[A-Za-z_][\w.:]{{0,80}} pid=\d+\)",
    "amd": r"\bHIP\b|\bhipError|\bRCCL\b|\bgfx(?:9|1[0-2])[0-9a-f]{2}\b|\bMI[23]\d\dA?X?\b|PYTORCH_HIP_ALLOC_CONF|"
    r"\brocm-smi\b|\bamd-smi\b",
    "nvidia": r"\bCUDA(?:_|\b)|\bNV_ERR|\bcuMem|\bnvidia\b|\bNVIDIA\b|\bNVRM\b|\bXid\b|\bcuda(?:Error|Malloc)|"
    r"\bGB10\b|\b[AH][12]00\b|\bNCCL\b",
}
"""Platform -> what shows that it was there. An AMD device says CUDA and NCCL too, so AMD's own words decide."""
_ROCM = re.compile(r"\bROCm\b|/opt/rocm|\bamdgpu\b")
"""What shows an AMD device where no NVIDIA device shows: a processor may have one too."""
_COMPILED = {name: re.compile(pattern) for name, pattern in _PLATFORMS.items()}
UNIFIED = re.compile(r"\bGB10\b|DGX Spark|\bJetson\b")
_RAY_KINDS = "ray-"
_KUBERNETES_KINDS = ("k8s-evicted", "k8s-node-not-ready", "k8s-deadline")
_ENVIRONMENT = re.compile(r"(?<![^\s\"'])[^\s\"']*(?:-packages|/lib/python3(?:\.\d+)?)/")
LONGEST, MOST = 400, 192 << 10
"""Characters of a line, and of all lines, that are looked at."""
FIRST = 48 << 10
"""Characters of the first lines of all logs, and of a launch script."""


class Seen(Struct, frozen=True):
    """What shows of the place of a run. `framework` is a name of FRAMEWORKS, `engine` "vllm" or "sglang", both empty
    where nothing shows one; `text` is what was looked at, the settings of the launch included.

    >>> sorted(seen_in("(EngineCore_0 pid=12) torch.OutOfMemoryError: CUDA out of memory").platforms)
    ['nvidia']
    >>> sorted(seen_in("srun: error: task 3\\n(WorkerDict pid=7) torch.cuda: HIP out of memory").platforms)
    ['amd', 'ray', 'slurm']
    """

    framework: str = ""
    engine: str = ""
    platforms: frozenset[str] = frozenset()
    text: str = ""

    def on(self, platform: str) -> bool:
        """Whether a platform shows; True for none at all. "unmanaged": nothing that starts and stops runs shows."""
        if platform == "unmanaged":
            return not self.platforms & {"kubernetes", "docker", "slurm", "lsf", "pbs"}
        return not platform or platform in self.platforms


def look(evidence: Sequence[Evidence], settings: Settings, heads: Sequence[str] = ()) -> Seen:
    """What evidence, the beginnings of the logs and the settings of a run show."""
    kinds = {each.kind for each in evidence}
    first = ("\n".join(heads)[:FIRST], settings.launch[:FIRST])
    seen = seen_in("\n".join((*first, *_texts(evidence))), settings)
    more = {"ray"} if any(kind.startswith(_RAY_KINDS) for kind in kinds) else set()
    more |= {"unified"} if settings.unified or UNIFIED.search(seen.text) else set()
    more |= {"kubernetes"} if kinds & set(_KUBERNETES_KINDS) else set()
    return Seen(seen.framework, seen.engine, seen.platforms | more, seen.text)


def seen_in(text: str, settings: Settings | None = None) -> Seen:
    """What a text and the settings of a run show."""
    settings = settings or Settings()
    given = "\n".join(f"{name}={value}" for name, value in settings.flags.items())
    plain = without_environment(text.replace("\\", "/"))
    framework = of_system(settings.planned_for) or _framework(plain)
    platforms = {name for name, pattern in _COMPILED.items() if pattern.search(text)}
    if "amd" in platforms or ("nvidia" not in platforms and _ROCM.search(text)):
        platforms = (platforms | {"amd"}) - {"nvidia"}
    if framework in ON_RAY:
        platforms.add("ray")
    engine = next((name for name, pattern in ENGINES.items() if re.search(pattern, plain)), "")
    return Seen(framework, engine, frozenset(platforms), f"{text}\n{given}")


def without_environment(text: str) -> str:
    """A text without the folders of Python environments, which may be called after anything.

    >>> without_environment('File "/envs/verl/lib/python3.10/site-packages/vllm/v1/core.py"')
    'File "/vllm/v1/core.py"'
    """
    return _ENVIRONMENT.sub("/", text)


def _texts(evidence: Sequence[Evidence]) -> Iterator[str]:
    """Every line that was read, those around the ends first, the same line once; so many characters at most."""
    lines: dict[tuple[str, int], str] = {}
    for each in sorted(evidence, key=lambda each: each.role != "end"):
        file = each.place.file
        for number, text in (*each.line.before, (each.place.line, each.line.text), *each.line.after):
            lines.setdefault((file, number), text[:LONGEST])
    frames = (each.fields["frames"] for each in evidence if "frames" in each.fields)
    left = MOST
    for text in (*frames, *lines.values()):
        left -= len(text) + 1
        if left < 0:
            return
        yield text


def _framework(text: str) -> str:
    """The trainer whose own code shows: of several the one that is on top of the others, and of those the one that
    shows most often. Empty where none shows or two show alike."""
    counts = {name: sum(1 for _ in each.pattern.finditer(text)) for name, each in FRAMEWORKS.items()}
    found = {name: count for name, count in counts.items() if count}
    if not found:
        return ""
    top = max(FRAMEWORKS[name].rank for name in found)
    best = sorted((count, name) for name, count in found.items() if FRAMEWORKS[name].rank == top)[::-1]
    if len(best) > 1 and best[0][0] == best[1][0]:
        return ""
    name = best[0][1]
    return next((variant for shows, variant in VARIANTS.get(name, ()) if re.search(shows, text)), name)
