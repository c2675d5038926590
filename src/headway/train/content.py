"""What a run is made of, by content: SHA-256 of the files that its paths lead to, wherever they lie."""

import hashlib
import json
import re
from pathlib import Path

from headway.config import adapter
from headway.config.resume import Content
from headway.config.sections import EvalSection, RunSpec
from headway.config.source import ModelSource, weight_files
from headway.rollout.data import ProblemSet, digest_of
from headway.rollout.reward_source import source_files

TOKENIZER = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json"),
    *("chat_template.jinja", "special_tokens_map.json", "added_tokens.json", "generation_config.json"),
)
"""What decides how text becomes tokens, and which token ends an answer."""

_BLOB = re.compile(r"[0-9a-f]{64}")
_NOT_OF_THE_MODEL = ("transformers_version", "_name_or_path", "base_model_name_or_path", "peft_version")


def content_of(spec: RunSpec, model: dict[str, str], problems: ProblemSet, held: int) -> Content:
    """The content of a run whose problems are read. `model` is of `model_digests`; `held` as `Content` has it."""
    files = {
        key: (file.name, sha256(file))
        for key, file in (("data.file", spec.data.file), ("eval.file", spec.eval.file))
        if file is not None
    }
    return Content(
        model,
        reward_digests(spec),
        files,
        digest_of(problems.train),
        digest_of(problems.held_out),
        held,
    )


def held_at_start(evaluation: EvalSection) -> int:
    """Problems that a run which starts now takes out of its training source for evaluation."""
    return 0 if evaluation.file is not None else evaluation.problems


def model_digests(source: ModelSource) -> dict[str, str]:
    """SHA-256 by file name of config, weights and tokenizer; of the packaged model, which any version of transformers
    may have converted, the weights alone. Nothing for random weights."""
    if source.kind == "random" or source.folder is None:
        return {}
    digests = {}
    if source.adapter is not None:
        digests[adapter.CONFIG] = _config_digest(source.adapter / adapter.CONFIG)
        digests[adapter.WEIGHTS] = sha256(source.adapter / adapter.WEIGHTS)
    if source.kind != "package":
        digests["config.json"] = _config_digest(source.folder / "config.json")
        digests |= {name: sha256(source.folder / name) for name in TOKENIZER if (source.folder / name).is_file()}
    return digests | {file.name: sha256(file) for file in weight_files(source.folder)}


def reward_digests(spec: RunSpec) -> dict[str, str]:
    """SHA-256 by name of the source files of a reward function."""
    if spec.reward.kind != "function" or spec.reward.function is None:
        return {}
    folders = [*(() if spec.reward.folder is None else (spec.reward.folder,)), Path.cwd()]
    return {name: sha256(file) for name, file in source_files(spec.reward.function, folders).items()}


def sha256(file: Path) -> str:
    """SHA-256 of a file, read piece by piece. A file of the hub's cache that is kept under its own SHA-256 has it
    for a name."""
    real = file.resolve()
    if real.parent.name == "blobs" and _BLOB.fullmatch(real.name):
        return real.name
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _config_digest(file: Path) -> str:
    """Of a config.json's keys in order, without those that say who wrote it."""
    config = {key: value for key, value in json.loads(file.read_text()).items() if key not in _NOT_OF_THE_MODEL}
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
