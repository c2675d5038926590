"""Whether a program is a trainer of TRL's."""

import re
from collections.abc import Iterable
from pathlib import Path

from headway.foreign import documents
from headway.foreign.command import Launch, split
from headway.foreign.documents import RefusedError
from headway.foreign.gather import named
from headway.foreign.peers import peer_of
from headway.foreign.shell.values import Word, worlds
from headway.foreign.trl_flags import FLAGS

MARKS = frozenset({
    "num_generations", "max_completion_length", "use_vllm", "vllm_mode", "vllm_gpu_memory_utilization",
    "steps_per_generation", "generation_batch_size", "num_generations_eval",
})  # fmt: skip
"""Flags that only TRL's sampling trainers have."""
TUNING = frozenset({
    "use_peft", "dataset_text_field", "assistant_only_loss", "completion_only_loss", "packing_strategy",
    "padding_free", "dataset_num_proc", "dataset_train_split", "dataset_test_split", "use_bnb_nested_quant",
    "lora_task_type", "chat_template_path", "precompute_ref_log_probs", "sft_model_path", "reward_model_path",
    "max_prompt_length", "beta", "loss_type", "packing",
})  # fmt: skip
"""Flags that TRL's other trainers and its ModelConfig have, and transformers has not."""
OWN = re.compile(
    r"(?:^|[./])trl[./]scripts[./]|(?:^|/)(?:trl/)?examples/scripts/(?:\w+/)?(?:sft|grpo|dpo|kto|ppo|rloo|gkd|online_dpo"
    r"|reward|orpo|cpo|gspo|nash_md|xpo|prm|bco|mpo)\w*(?:\.py)?$|open_r1[./](?:grpo|sft)(?:\.py)?$"
    r"|(?:^|/)alignment-handbook/"
)
"""TRL's own scripts, and those of open-r1 and alignment-handbook, whose settings are TRL's with a few more."""
NAMED_SO = re.compile(r"(?:run_)?(?:sft|grpo|dpo|kto|ppo|rloo|gkd|online_dpo|reward|orpo)(?:_vlm)?")


def claims(launch: Launch, keys: Iterable[str] = ()) -> bool:
    """Whether a program is a trainer of TRL's: by its entry point, or by flags that only TRL has, and the `keys` of
    the file of settings that it names.

    Two settings that only TRL has are no accident where nearly all others are TRL's or transformers' too. What a
    program of another name has in common with TRL's, such as the name of a model, proves nothing.
    """
    if launch.program.startswith("trl "):
        return True
    names = {
        name
        for item in launch.arguments
        if isinstance(item, Word) and item.parts and isinstance(item.parts[0], str)
        for name in [item.parts[0].partition("=")[0]]
        if name.startswith("--")
    }
    given = {name[2:].replace("-", "_") for name in names} | set(keys)
    plain = {name.removeprefix("no_") if name not in FLAGS else name for name in given if "$" not in name}
    if peer_of(launch.command) is not None:
        return False
    strangers = plain - FLAGS
    if OWN.search(launch.program):
        return bool(plain - strangers) or "trl" in launch.program
    if len(strangers) * 4 > len(plain):
        return False
    if len(plain & (MARKS | TUNING)) >= 2:
        return True
    name = launch.name.removesuffix(".py").rpartition(".")[2]
    ours = {"model_name_or_path", "dataset_name"} <= plain or bool(plain & (MARKS | TUNING))
    return NAMED_SO.fullmatch(name) is not None and ours and not strangers


def keys_of(launch: Launch, script: Path | None, root: Path | None) -> Iterable[str]:
    """The keys of the file of settings that a command names."""
    line = named(split(next(worlds(launch.arguments))))
    given = line.last("config", "config_file")
    word = given.values[0] if given is not None and given.values else next(iter(line.words), Word())
    if not (word.text or "").endswith((".yaml", ".yml", ".json")):
        return ()
    path, _ = documents.locate(word, script, root)
    try:
        return () if path is None else documents.table(path).keys()
    except RefusedError:
        return ()
