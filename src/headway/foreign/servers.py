"""Servers of other models that a script starts before its trainer, on the same machine."""

import re

from headway.foreign.command import flags
from headway.foreign.found import Found
from headway.foreign.shell import Script
from headway.foreign.shell.commands import Command
from headway.foreign.shell.values import Word

VISIBLE = "CUDA_VISIBLE_DEVICES"
ELSEWHERE = ("echo", "printf", "ssh", "pip", "sbatch")
"""Programs whose words start nothing on this machine."""
KILLS = ("kill", "pkill", "killall")
SERVERS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("vllm", "serve"): ("", "model"),
    ("-m", "vllm.entrypoints.openai.api_server"): ("model",),
    ("-m", "vllm.entrypoints.api_server"): ("model",),
    ("-m", "sglang.launch_server"): ("model-path", "model"),
    ("sglang", "serve"): ("model-path", "model", ""),
    ("trl", "vllm-serve"): ("model",),
    ("-m", "trl.scripts.vllm_serve"): ("model",),
    ("-m", "openrlhf.cli.serve_rm"): ("reward_pretrain", "reward.model_name_or_path"),
    ("lmdeploy", "serve"): ("",),
    ("text-generation-launcher",): ("model-id",),
}
"""Words of a command that starts a server -> the flags that name its model; an empty one is the word behind them."""
OWN = (("trl", "vllm-serve"), ("-m", "trl.scripts.vllm_serve"))
"""Servers that are the engine of a run that asks for one."""


def beside(script: Script, found: Found) -> tuple[str, ...]:
    """The servers that hold memory beside the trainer, in words.

    One whose devices are none of the trainer's, by CUDA_VISIBLE_DEVICES of both, is left out, as is one that is
    killed before the trainer starts, and the engine of TRL's server mode.
    """
    last = next((place for place, each in enumerate(script.commands) if _trains(each, found)), 0)
    own = found.system == "trl" and found.value("engine") == "vllm" and found.value("colocate") is False
    mine = _devices(script.commands[last], script) if last else frozenset()
    told: list[str] = []
    for command in script.commands[:last]:
        if command.program in KILLS:
            told = []
        words = [item.text or "" for item in command.argv if isinstance(item, Word)]
        kind = next((each for each in SERVERS if _starts(words, each)), None)
        if kind is None or command.program in ELSEWHERE or (own and kind in OWN):
            continue
        theirs = _devices(command, None)
        if mine and theirs and not mine & theirs:
            continue
        name = _model(words, kind)
        told.append(
            f"a server of {name} ({' '.join(kind)}, line {command.at.line}), which runs on the same machine while "
            "the trainer does"
        )
    return tuple(dict.fromkeys(told))


def _trains(command: Command, found: Found) -> bool:
    """Whether it is the command that starts the run, or the Python script that was read."""
    name = found.program.rpartition("/")[2]
    texts = [item.text or "" for item in command.argv if isinstance(item, Word)]
    return command.at == found.at or (name.endswith(".py") and any(text.endswith(name) for text in texts))


def _starts(words: list[str], kind: tuple[str, ...]) -> bool:
    """Whether the words of a kind stand one after the other, the program by its name without a folder."""
    size = len(kind)
    plain = [word.rpartition("/")[2] if not word.startswith("-") else word for word in words]
    return any(tuple(plain[place : place + size]) == kind for place in range(min(len(words), 12)))


def _devices(command: Command, script: Script | None) -> frozenset[str]:
    """The devices that a command is shown; none where it is not told."""
    word = dict(command.environment).get(VISIBLE)
    if word is None:
        texts = [item.text or "" for item in command.argv[:6] if isinstance(item, Word)]
        text = next((each.partition("=")[2] for each in texts if each.startswith(f"{VISIBLE}=")), "")
    else:
        text = word.text or ""
    if not text and script is not None and VISIBLE in script.exports:
        held = script.variables.get(VISIBLE)
        text = (held.text or "") if isinstance(held, Word) else ""
    return frozenset(text.split(",")) if re.fullmatch(r"\d{1,3}(,\d{1,3})*", text) else frozenset()


def _model(words: list[str], kind: tuple[str, ...]) -> str:
    line = flags(words)
    for name in SERVERS[kind]:
        if not name:
            behind = words[words.index(kind[-1]) + 1 :] if kind[-1] in words else []
            plain = [word for word in behind if word and not word.startswith("-") and word != "api_server"]
            if plain and behind[0] and not behind[0].startswith("-"):
                return plain[0]
            continue
        given = line.get(name) or line.get(name.replace("-", "_")) or ()
        if given and given[-1].text:
            return given[-1].text
    return "a model that is not told"
