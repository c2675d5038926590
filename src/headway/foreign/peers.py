"""Systems whose launches are known and not read: how each is known, and the preset that is nearest to it.

A launch that no reader knows is refused with the command that plans the same run by name. Flags and entry points:
each system's README and launch scripts, 2025 and 2026.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from headway.foreign import documents
from headway.foreign.command import NO_STARTERS, PYTHON, Flag, Line, launches, split
from headway.foreign.documents import RefusedError
from headway.foreign.shell import Command, Script
from headway.foreign.shell.values import Word, worlds


class Peer(Struct, frozen=True):
    """One system: what its commands have in them, flags that only it has, and presets for supervised fine-tuning of
    all parameters, for LoRA, and for reinforcement learning. `rl_only`: it does nothing else.

    >>> PEERS[0].name, PEERS[0].full
    ('axolotl', 'hf')
    """

    name: str
    starts: str
    full: str = "hf"
    lora: str = "peft"
    rl: str = "trl"
    flags: frozenset[str] = frozenset()
    rl_only: bool = False


PEERS: tuple[Peer, ...] = (
    Peer("axolotl", r"\baxolotl (train|preprocess|fetch)\b|\baxolotl[./]cli\b"),
    Peer("LLaMA-Factory", r"llamafactory|\bLLaMA-?Factory\b", flags=frozenset({"finetuning_type"})),
    Peer("ms-swift", r"\b(swift|megatron) (sft|pt|rlhf|rl|grpo|export)\b|\bswift/cli/", flags=frozenset({
        "rlhf_type", "external_plugins",
    })),
    Peer("prime-rl", r"\bprime[_-]rl\b|\buv run (rl|sft|trainer|orchestrator) @|\b(rl|sft) @ ", "fsdp2",
         rl="verl-fsdp"),
    Peer("NeMo-RL", r"\bnemo[_-]rl\b|\bexamples/run_(grpo|sft|dpo|rm|distillation|vlm|eval)\w*\.py", "fsdp2",
         rl="verl-fsdp"),
    Peer("open-instruct", r"\bopen[_-]instruct\b|\bmason\.py\b", "hf", rl="openrlhf", flags=frozenset({
        "num_unique_prompts_rollout", "num_samples_per_prompt_rollout", "num_learners_per_node",
        "dataset_mixer_list", "dataset_mixer_list_splits",
    })),
    Peer("Unsloth", r"unsloth", "hf", "qlora"),
    Peer("torchtune", r"\btune run\b", "torchtune"),
    Peer("litgpt", r"\blitgpt (finetune|pretrain)\w*|\blitgpt/", "litgpt"),
    Peer("DeepSpeed-Chat", r"DeepSpeed-?Chat|step\d_\w*finetuning", rl="openrlhf", flags=frozenset({
        "actor_model_name_or_path", "critic_model_name_or_path", "actor_zero_stage", "critic_zero_stage",
    })),
    Peer("AReaL", r"\bareal[./]|\bAReaL\b", "fsdp2", rl="verl-fsdp"),
    Peer("rLLM", r"\brllm[./]", "fsdp2", rl="verl-fsdp", rl_only=True),
    Peer("SkyRL", r"\bskyrl", "fsdp2", rl="verl-fsdp", rl_only=True),
    Peer("ROLL", r"\bstart_(rlvr|agentic|dpo|sft|distill|reward)\w*_pipeline\.py", "fsdp2", rl="verl-megatron"),
    Peer("EasyR1", r"-m verl\.trainer\.main\b", "fsdp2", rl="verl-fsdp", rl_only=True),
    Peer("Megatron-Bridge", r"\bmegatron[./-]bridge\b", rl="verl-megatron"),
    Peer("NeMo", r"\bnemo\.collections\b|\bnemo llm\b|\bnemo_run\b|/NeMo/", rl="verl-megatron"),
    Peer("nanochat", r"\bnanochat\b|-m scripts\.(base|mid|chat)_\w+"),
    Peer("torchtitan", r"\btorchtitan\b", "torchtitan"),
    Peer("PipelineRL", r"\bpipelinerl\b", rl="openrlhf", rl_only=True),
    Peer("verifiers", r"\bvf-(rl|train)\b|-m verifiers\b"),
    Peer("transformers' examples", r"\brun_(clm|mlm|seq2seq|translation|summarization|qa)\w*\.py"),
)  # fmt: skip
"""Asked in this order, after every reader; open-r1 and alignment-handbook have TRL's own settings and are read."""

_RL = re.compile(
    r"grpo|ppo|rlvr|rlhf|rloo|reinforce|dapo|\brl\b|[./_]rl[./_]|orchestrator|agentic|[_-]rl\b|actor_model",
    re.IGNORECASE,
)
_NAMES = re.compile(r"prime[_-]rl|nemo[_-]rl", re.IGNORECASE)
"""Systems that are called so and do more."""
_QLORA = re.compile(r"qlora|load_in_4bit[ =]?(?!false)|quantization_bit|quant_method", re.IGNORECASE)
_LORA = re.compile(r"lora", re.IGNORECASE)
MODEL_KEYS = (
    "model_name_or_path", "actor_model_name_or_path", "base_model", "model_path", "model", "model_name", "pretrain",
    "hf_checkpoint", "policy.model_name", "model.name", "model.path", "actor.path", "trainer.policy.model.path",
    "checkpoint_dir", "model.name_or_path", "actor_rollout_ref.model.path", "worker.actor.model.model_path",
    "model_id", "hf_model_path", "pretrained_model_name_or_path",
)  # fmt: skip
"""Where systems name the model, in flags, overrides and files."""
LENGTHS = ("max_completion_length", "max_new_tokens", "response_length", "generate_max_len", "max_response_length")
SEQUENCES = ("cutoff_len", "max_length", "max_seq_length", "max_seq_len", "sequence_len", "seq_len")
MOST = 2000


def peer_of(command: Command) -> Peer | None:
    """The system that a command starts, of those that are not read; None for any other.

    >>> from headway.foreign.shell import read_text
    >>> peer_of(read_text("axolotl train cfg.yml").commands[0]).name
    'axolotl'
    """
    entry = _entry(command)
    names = {name.replace("-", "_") for name in _line(command).flags}
    return next((peer for peer in PEERS if re.search(peer.starts, entry) or names & peer.flags), None)


def _entry(command: Command) -> str:
    """The words that say what is started: values of flags name models and folders, which may be called anything."""
    texts = [item.text or "" for item in command.argv if isinstance(item, Word)]
    if texts[:1] and texts[0].rpartition("/")[2] in NO_STARTERS:
        return ""
    kept = [
        last if PYTHON.fullmatch(last := text.rpartition("/")[2]) else text
        for place, text in enumerate(texts)
        if text[:1] != "-" and not (place and texts[place - 1].startswith("--") and "=" not in texts[place - 1])
    ]
    programs = [f"-m {each.program}" if "/" not in each.program else each.program for each in launches(command)]
    return " ".join((*kept[:6], *programs))[:MOST]


def _shown(command: Command) -> str:
    return " ".join(item.shown for item in command.argv if isinstance(item, Word))[:MOST]


def _line(command: Command) -> Line:
    return split(next(worlds(command.argv)))


class Instead(Struct, frozen=True):
    """What to plan in place of a launch that is not read: a model, a trainer and settings by name.

    >>> Instead("qwen3-4B", "peft", ("rollout.max_answer=2048",)).command("8xh100-80")
    'headway plan qwen3-4B --trainer peft --machine 8xh100-80 --set rollout.max_answer=2048'
    """

    model: str = ""
    trainer: str = "miles-fsdp"
    settings: tuple[str, ...] = ("rollout.max_answer=1024",)

    def command(self, machine: str | None = None, model: str | None = None) -> str:
        """The command, for the user's machine and model where they named one."""
        words = ["headway", "plan", model or self.model or "qwen3-4B", "--trainer", self.trainer]
        words += ["--machine", machine or "8xh100-80"]
        for setting in self.settings:
            words += ["--set", setting]
        return shlex.join(words)

    def about(self, machine: str | None = None, model: str | None = None) -> str:
        """The command with what is left to say of it."""
        from headway.foreign.shape_flags import by_variant

        name = model or self.model
        told = f"plan the same run by name: {self.command(machine, model)}"
        if not name:
            return told.replace("by name:", "by name, with its model in place of qwen3-4B:")
        if model is None and by_variant(name) is None:
            return f"{told} ({name} is in no built-in table: name the folder with its config.json)"
        return told


def instead(script: Script, root: Path | None = None) -> tuple[Peer | None, Command | None, Instead]:
    """The system that a script starts, the command that does, and what to plan in its place."""
    for command in script.commands:
        peer = peer_of(command)
        if peer is not None:
            return peer, command, _made(command, peer, script, root)
    trained = next((each for each in script.commands if _trains(each)), None)
    if trained is None:
        return None, None, Instead()
    return None, trained, _made(trained, Peer("", ""), script, root)


TRAINING = frozenset({
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "lr_scheduler_type",
    "learning_rate", "finetuning_args", "micro_batch_size", "batch_size",
})  # fmt: skip
"""Flags of which two say that a program trains, whatever it is called."""


def _trains(command: Command) -> bool:
    text = _shown(command)
    names = {name.replace("-", "_") for name in _line(command).flags}
    return bool(_RL.search(text)) or "sft" in text or len(names & TRAINING) >= 2


def _made(command: Command, peer: Peer, script: Script, root: Path | None) -> Instead:
    text, said = _shown(command), dict(_said(command, script, root))
    held = f"{text} {' '.join(f'{key}={value}' for key, value in said.items())}"
    plain, more = (_NAMES.sub(" ", each) for each in (text, held))
    if peer.rl_only or _RL.search(plain) or (_RL.search(more) and "sft" not in text):
        trainer = peer.rl
    elif _QLORA.search(held):
        trainer = "qlora"
    else:
        trainer = peer.lora if _LORA.search(held) else peer.full
    is_rl = trainer == peer.rl and trainer not in (peer.full, peer.lora)
    length = next((said[key] for key in (LENGTHS if is_rl else SEQUENCES) if said.get(key, "").isdigit()), "")
    settings = [f"rollout.max_answer={length[:7]}"] if length else []
    rows = said.get("per_device_train_batch_size") or said.get("micro_batch_size") or ""
    if rows.isdigit() and trainer in ("trl", "hf", "peft", "qlora", "litgpt", "torchtune", "fsdp2", "torchtitan"):
        settings.append(f"trainer.rows={rows[:4]}")
    return Instead(_model(said, text), trainer, tuple(settings))


def _model(said: dict[str, str], text: str) -> str:
    """The model by its name in the built-in table; where it is in none, as the launch has it."""
    from headway.foreign.shape_flags import by_variant

    named = [said[key] for key in MODEL_KEYS if said.get(key)]
    hubs: list[str] = re.findall(r"[\w.\-]+/[\w.\-]+", text)
    for each in (*named, *hubs):
        if by_variant(each) is not None:
            return each if each.count("/") < 2 else each.rstrip("/").rpartition("/")[2]
    return next((each for each in named if re.fullmatch(r"[\w.\-/]*\w/[\w.\-]+/?", each)), "")


def _said(command: Command, script: Script, root: Path | None) -> Iterator[tuple[str, str]]:
    """Settings of the command's files, under those of its overrides and flags."""
    line = _line(command)
    words = [item for item in command.argv if isinstance(item, Word)]
    for word in words:
        if re.search(r"\.(ya?ml|toml|json)$", word.text or ""):
            yield from _of_file(word, script, root)
    for word in words:
        key, equals, value = (word.text or "").partition("=")
        if equals and not key.startswith("-"):
            yield key.lstrip("+~"), value.strip("\"'")
    for name, given in line.flags.items():
        if given and (text := _value(given[-1])):
            yield name.replace("-", "_"), text


def _value(flag: Flag) -> str:
    text = flag.values[0].text if flag.values else "true"
    return text or ""


def _of_file(word: Word, script: Script, root: Path | None) -> Iterator[tuple[str, str]]:
    import tomllib

    from headway.foreign.gather import tree

    path, top = tree(script, root)
    try:
        found, _ = documents.locate(Word(((word.text or "").rpartition("=")[2],)), path, top)
        if found is None:
            return
        if found.suffix == ".toml":
            if found.stat().st_size > documents.LARGEST:
                return
            table = tomllib.loads(found.read_text(errors="replace"))
        else:
            table = documents.table(found)
    except (RefusedError, OSError, tomllib.TOMLDecodeError, RecursionError):
        return
    yield from _flat(table, "", 0)


def _flat(table: object, prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    if not isinstance(table, dict) or depth > 4:
        return
    for key, value in list(table.items())[:200]:
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.", depth + 1)
        elif isinstance(value, str | int | float) and len(str(value)) < 300:
            yield f"{prefix}{key}", str(value)


def known_by(peer: Peer, command: Command) -> str:
    """What in a command names its system, in words."""
    match = re.search(peer.starts, _entry(command))
    if match is not None:
        return match[0].strip()
    names = [f"--{name}" for name in _line(command).flags if name.replace("-", "_") in peer.flags]
    return ", ".join(names[:3])
