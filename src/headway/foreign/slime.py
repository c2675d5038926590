"""slime's launch scripts: `train.py` and `train_async.py` with Megatron's flags, an SGLang engine, a reference.

Flags and defaults: THUDM/slime 624b824a8, slime/utils/arguments.py. What Miles shares is here too.
"""

import re
from collections.abc import Callable, Sequence

from headway.foreign import megatron_flags as megatron
from headway.foreign.command import Launch, Line, launches
from headway.foreign.found import KEYS, Found, Setting
from headway.foreign.rules import Answer, Answers, Rule, Unclear, answers, defaults, merged, places
from headway.foreign.shell import Script
from headway.foreign.shell.values import Word

MIB = 1 << 20

RULES = (
    *megatron.SHAPE,
    Rule("nodes", ("actor-num-nodes",), "int", 1),
    Rule("gpus_per_node", ("actor-num-gpus-per-node",), "int", 8),
    Rule("colocate", ("colocate",), "switch"),
    Rule("rollout_gpus", ("rollout-num-gpus",)),
    Rule("gpus_per_engine", ("rollout-num-gpus-per-engine",), "int", 1),
    *megatron.LAYOUT,
    Rule("dynamic_batch", ("use-dynamic-batch-size",), "switch"),
    Rule("max_tokens_per_gpu", ("max-tokens-per-gpu",)),
    *megatron.TRAINING,
    Rule("num_steps_per_rollout", ("num-steps-per-rollout",)),
    Rule("rollout_batch", ("rollout-batch-size",)),
    Rule("samples_per_prompt", ("n-samples-per-prompt",), "int", 1),
    Rule("max_prompt_len", ("rollout-max-prompt-len",)),
    Rule("max_response_len", ("rollout-max-response-len",)),
    Rule("max_total_len", ("rollout-max-context-len",)),
    Rule("eval_max_response_len", ("eval-max-response-len",)),
    Rule("engine_mem_fraction", ("sglang-mem-fraction-static",), "float"),
    Rule("use_kl_loss", ("use-kl-loss",), "switch"),
    Rule("kl_loss_coef", ("kl-loss-coef",), "float", 0.0),
    Rule("kl_coef", ("kl-coef",), "float", 0.0),
    Rule("reference_path_given", ("ref-load",), "given"),
    Rule("lora_rank", ("lora-rank",)),
    Rule("update_weight_buffer_bytes", ("update-weight-buffer-size",), "int", 512 * MIB),
)
"""What slime and Miles read alike."""

SWITCHES = megatron.SWITCHES | {
    "colocate", "offload", "offload-train", "offload-rollout", "use-dynamic-batch-size", "balance-data",
    "use-kl-loss", "balance-by-flops", "apply-chat-template", "rollout-shuffle", "use-wandb", "partial-rollout",
    "use-fault-tolerance", "use-tis", "debug-train-only", "debug-rollout-only", "normalize-advantages",
    "calculate-per-token-loss", "use-rollout-routing-replay", "use-routing-replay", "gradient-checkpointing",
    "fsdp-cpu-offload", "use-tensorboard", "recompute-loss-function", "record-memory-history",
    "disable-wandb-random-suffix", "dump-details", "release-train",
}  # fmt: skip

SIGNS = frozenset({
    "rollout-batch-size", "n-samples-per-prompt", "hf-checkpoint", "actor-num-nodes", "actor-num-gpus-per-node",
    "rollout-num-gpus", "rollout-num-gpus-per-engine", "num-rollout", "rollout-max-response-len", "prompt-data",
    "advantage-estimator", "rollout-function-path", "max-tokens-per-gpu", "use-dynamic-batch-size", "rm-type",
    "colocate", "ref-load", "sglang-mem-fraction-static", "train-backend",
})  # fmt: skip
"""Flags by which a training command of slime or Miles is known; three of them are no accident."""

ARRAYS = re.compile(r"(MODEL|CKPT|ROLLOUT|EVAL|PERF|GRPO|OPTIMIZER|SGLANG|MISC|WANDB|TRAIN|ARGS)\w*|\w*_ARGS")
"""Arrays of arguments as the launch scripts of slime and Miles call them."""

ONLY_MILES = frozenset({
    "keep-fp32-master", "offload-rollout-level", "offload-train-target", "train-memory-margin-bytes",
    "lora-rank", "dp-replicate-size", "update-weight-transfer-mode",
    "observe-training-entropy", "use-miles-router", "object-store-backend", "lora-alpha",
    "stream-optimizer-state-to-disk", "miles-router-timeout",
})  # fmt: skip


def trainers(script: Script) -> list[Launch]:
    """The training commands of a script: those up to the first that hangs on nothing.

    Commands after it are further runs; those before it are what the run may be instead.
    """
    found: list[Launch] = []
    for command in script.commands:
        for launch in launches(command):
            if is_trainer(launch):
                found.append(launch)
                if not command.when:
                    return found
    return found


def is_trainer(launch: Launch) -> bool:
    """Whether a program is the trainer of slime or Miles.

    >>> from headway.foreign.shell import read_text
    >>> command = read_text("python3 train.py --num-rollout 3 --colocate --rollout-batch-size 8").commands[0]
    >>> [is_trainer(launch) for launch in launches(command)]
    [True]
    """
    if "convert" in launch.name or launch.name.startswith(("eval", "sglang", "vllm")):
        return False
    lines = launch.lines(SWITCHES)
    signs = max(len(SIGNS & line.flags.keys()) for line in lines)
    hidden = any(ARRAYS.fullmatch(gap.name) for line in lines for gap in line.gaps)
    return signs >= 3 or (bool(re.fullmatch(r"train(_async)?\.py", launch.name)) and (signs > 0 or hidden))


def is_miles(script: Script, lines: Sequence[Line]) -> bool:
    """Whether a script is of Miles rather than of slime, from which it has most of its flags."""
    if any(name in line for name in ONLY_MILES for line in lines):
        return True
    if any(line.last("train-backend") for line in lines) and not _named(script, "slime"):
        return True
    return _named(script, "miles") > _named(script, "slime")


def _named(script: Script, name: str) -> int:
    """How much a script names a system: its own modules and its place count for more than paths and projects do."""
    text, path = script.text.lower(), script.path.lower()
    apart = rf"(?<![a-z]){name}(?![a-z])"
    return (
        len(re.findall(apart, text))
        + 2 * len(re.findall(apart + r"\.[a-z_]", text))
        + 3 * len(re.findall(apart, path))
    )


def read(script: Script) -> Found | None:
    """A script of slime; None where it is none."""
    found = trainers(script)
    lines = [line for launch in found for line in launch.lines(SWITCHES)]
    if not found or is_miles(script, lines):
        return None
    return describe(script, found, "slime", RULES, _own)


def _own(said: Answers, line: Line, launch: Launch) -> tuple[Answers, dict[str, Setting]]:
    """slime's own: Megatron is the only trainer but in old versions."""
    backend = line.last("train-backend")
    own = shared(said, line, launch)
    own["trainer_backend"] = "megatron" if backend is None else backend.text or Unclear(backend.why)
    own["recompute"] = recompute(line)
    own["param_offload"] = "fsdp-cpu-offload" in line
    return own, follows(said)


Own = Callable[[Answers, Line, Launch], tuple[Answers, dict[str, Setting]]]


def describe(script: Script, found: Sequence[Launch], system: str, rules: Sequence[Rule], own: Own) -> Found:
    """The settings that all worlds of the training commands agree on, and why the rest is unknown."""
    worlds: list[Answers] = []
    derived: list[Answers] = []
    lines: list[Line] = []
    for launch in found:
        for line in launch.lines(SWITCHES):
            said = answers(rules, line)
            more, follow = own(said, line, launch)
            whole = {**dict.fromkeys(KEYS), **said, **more, "system": system}
            worlds.append(whole)
            derived.append({**defaults(rules, whole), **follow})
            lines.append(line)
    doubts = [why for launch in found for why in (*launch.command.when, *launch.doubts)]
    settings, unknown = merged(worlds, list(dict.fromkeys(doubts)))
    follows_all, _ = merged(derived, [])
    first = found[0]
    return Found(
        system, settings, follows_all, unknown, script.unread, tuple(_notes(script, found, lines)), first.arguments,
        _flags(lines), places(rules, lines), script.sourced, first.program, first.command.at,
        frozenset(name for line in lines for name in line.asked), _checkpoint(lines),
    )  # fmt: skip


def shared(said: Answers, line: Line, launch: Launch) -> Answers:
    """What slime and Miles make of their flags alike."""
    estimator = line.last("advantage-estimator")
    reference: Answer = True
    if said["use_kl_loss"] is not True:
        coefficient = said["kl_coef"]
        reference = coefficient if isinstance(coefficient, Unclear) else bool(coefficient)
        if isinstance(said["use_kl_loss"], Unclear) and reference is not True:
            reference = said["use_kl_loss"]
    precision = megatron.low_precision(line)
    return {
        "engine": "sglang",
        "model_name": model_name(line),
        "mode": "async" if "async" in launch.name or "fully-async" in line else "sync",
        "reference_loaded": reference,
        "critic_loaded": _critic(line) if estimator is not None or "use-critic" in line else False,
        "dtype": megatron.dtype(line),
        "low_precision": precision if precision is not None else _quantized(launch),
    }


def recompute(line: Line) -> Answer:
    """Checkpointing by Megatron's flags or by the FSDP trainer's switch."""
    return "gradient_checkpointing" if "gradient-checkpointing" in line else megatron.recompute(line)


def _critic(line: Line) -> Answer:
    if "use-critic" in line:
        return True
    estimator = line.last("advantage-estimator")
    if estimator is None or estimator.text is None:
        return Unclear(estimator.why if estimator is not None else "")
    return estimator.text == "ppo"


def _quantized(launch: Launch) -> Answer:
    """int4 training is switched on by a variable of the trainer's environment."""
    words = [*launch.launcher, *launch.environment.values()]
    texts = [word.shown for word in words if isinstance(word, Word)]
    name = "OPEN_TRAINING_INT4_FAKE_QAT_FLAG"
    told = any(re.search(name + r"\W{1,8}1\b", text) for text in texts)
    given = launch.environment.get(name)
    return "int4" if told or (given is not None and given.text == "1") else None


def model_name(line: Line) -> Answer:
    """The last name in the checkpoint's path, which may be known where the folder before it is not."""
    flag = line.last("hf-checkpoint", "load", "ref-load")
    flag = line.last("hf-checkpoint") or flag
    if flag is None or not flag.values:
        return None if flag is None else Unclear(f"--{flag.name} has no value")
    word = flag.values[0]
    last = word.parts[-1] if word.parts else ""
    if not isinstance(last, str) or (word.holes and "/" not in last.rstrip("/")):
        return Unclear(word.why)
    return checkpoint_name(last)


def checkpoint_name(path: str) -> str:
    """The model's name in a path, also in the folders of a hub cache.

    >>> checkpoint_name("/root/Qwen3-4B/"), checkpoint_name("/hub/models--Qwen--Qwen3-4B/snapshots/1cfa9a/")
    ('Qwen3-4B', 'Qwen3-4B')
    """
    cached = re.search(r"models--[^/]*?--([^/]+)/snapshots", path)
    return cached[1] if cached else path.rstrip("/").rpartition("/")[2]


def follows(said: Answers) -> dict[str, Setting]:
    """What follows from the settings where the script says nothing itself."""

    def number(key: str, default: int | None = None) -> int | None:
        value = said.get(key)
        return value if isinstance(value, int) else default if value is None else None

    found: dict[str, Setting] = {"dtype": "bf16"}
    nodes, gpus = number("nodes", 1), number("gpus_per_node", 8)
    if said["rollout_gpus"] is None and said["colocate"] is True and nodes is not None and gpus is not None:
        found["rollout_gpus"] = nodes * gpus
    prompts, samples = number("rollout_batch"), number("samples_per_prompt", 1)
    batch, steps = number("global_batch"), number("num_steps_per_rollout")
    if prompts and samples:
        if batch:
            found["num_steps_per_rollout"] = prompts * samples // batch
        elif steps:
            found["global_batch"] = prompts * samples // steps
    if said["eval_max_response_len"] is None and isinstance(said["max_response_len"], int):
        found["eval_max_response_len"] = said["max_response_len"]
    if said["etp"] is None and (tensor := number("tp", 1)) is not None:
        found["etp"] = tensor
    heads, hidden = number("num_attention_heads"), number("hidden_size")
    if heads and hidden:
        found |= {"num_kv_heads": heads, "kv_channels": hidden // heads}
    return found


def _notes(script: Script, found: Sequence[Launch], lines: Sequence[Line]) -> list[str]:
    notes = []
    if len(found) > 1:
        where = ", ".join(str(launch.command.at.line) for launch in found)
        notes.append(f"{script.path}: training commands in lines {where}; what they say alike is read")
    loose = dict.fromkeys(word.shown for line in lines for word in line.loose)
    notes += [f"{word} is empty unless whoever runs the script sets it" for word in loose]
    empty = dict.fromkeys(
        flag.name for line in lines for flags in line.flags.values() for flag in flags
        if flag.name in NEEDS_VALUE and not flag.values
    )  # fmt: skip
    notes += [f"--{name} has no value" for name in empty]
    notes += [
        f"--{name} {line.flags[name][-1].text or ''} may set anything, and is not read".replace("  ", " ")
        for name in ("custom-config-path", "args-file") for line in lines[:1] if name in line
    ]  # fmt: skip
    every = [flag for line in lines for flags in line.flags.values() for flag in flags[-1:]]
    notes += dict.fromkeys(
        f"--{flag.name} {' '.join(word.shown for word in flag.values)[:120]}: {flag.why}"
        for flag in every if flag.why and not SECRET.search(flag.name)
    )  # fmt: skip
    notes += dict.fromkeys(f"words that are not known: {gap.why}" for line in lines for gap in line.gaps)
    notes += [f"words that may be there or not: {why}" for why in found[0].doubts]
    return notes


SECRET = re.compile(r"wandb|key$|token$")
"""Flags of which nothing is said: no run hangs on them."""
NEEDS_VALUE = frozenset(
    {"prompt-data", "eval-prompt-data", "hf-checkpoint", "ref-load", "load", "save", "num-rollout"}
)


def _flags(lines: Sequence[Line]) -> dict[str, tuple[str | None, ...]]:
    """All flags of the first world with their values."""
    return {name: tuple(word.text for word in flags[-1].values) for name, flags in lines[0].flags.items()}


def _checkpoint(lines: Sequence[Line]) -> str:
    for line in lines:
        flag = line.last("hf-checkpoint") or line.last("ref-load") or line.last("load")
        if flag is not None and flag.values:
            return flag.values[0].shown
    return ""
