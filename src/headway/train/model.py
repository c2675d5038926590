"""From a ModelSource to parameters in memory, and back to a folder."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from msgspec.structs import replace
from peft import PeftModel
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging

from headway.config.adapter import Record
from headway.config.sections import ModelSection
from headway.config.source import PACKAGED, ModelSource, from_files, packaged, weight_files
from headway.errors import InputError
from headway.facts.shapes import ModelShape
from headway.train.convert import smollm2
from headway.train.lora import adapter_off, merged
from headway.train.record import write_record
from headway.train.tokenizer import SIZE, byte_tokenizer

POSITIONS = 32_768
"""Positions of a model with random weights, where no published one has its shape."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class LoadedModel:
    """A model with all parameters in one dtype on one device, in training mode, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    shape: ModelShape


def prepare(source: ModelSource, progress: Callable[[str], None]) -> ModelSource:
    """Bring the model's files to this machine: convert the packaged model, fetch a hub id. Else nothing to do.

    Returns the source with its folder and shape. InputError where a package or the network is missing, or the
    fetched model is one that headway does not train.
    """
    if source.kind == "package":
        assert source.folder is not None
        found = packaged(smollm2(source.folder, progress))
    elif source.kind == "hub" and source.folder is None:
        found = from_files("hub", source.path, _fetch(source.path, progress))
        if found.adapter is not None:  # an adapter of the hub, whose base may be there too
            return prepare(found, progress)
    else:
        return source
    return replace(found, adapter=source.adapter)


def _fetch(repository: str, progress: Callable[[str], None]) -> Path:
    """The local copy of a hub repository's config, safetensors and tokenizer."""
    progress(f"fetching {repository} from the Hugging Face hub, unless it is in its cache")
    try:
        found = snapshot_download(
            repository,
            allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"],
            ignore_patterns=["*/*"],
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = " ".join(str(error).split())[:400]
        raise InputError(
            f"model.path = {repository}: could not be fetched from the Hugging Face hub. Without network or access, "
            f"set model.path to a folder or to {PACKAGED}. The hub's client says: {reason}"
        ) from error
    return Path(found)


def load(
    source: ModelSource, section: ModelSection, device: torch.device, seed: int, *, merge_adapter: bool = True
) -> LoadedModel:
    """Load a prepared source in the section's dtype and attention; `seed` decides random weights.

    An adapter of the source is merged into its base, or left out: `train.lora` puts it in. Peak memory is the weights
    plus the few tensors being read. InputError where files and config do not agree.
    """
    assert source.shape is not None, "prepare() first"
    tokenizer: PreTrainedTokenizerBase
    with quiet():
        if source.kind == "random" or source.folder is None:
            tokenizer = byte_tokenizer() if source.folder is None else _tokenizer(source)
            model = _random(source.shape, section, device, seed)
        else:
            tokenizer = _tokenizer(source)
            model = _read(source, source.folder, section, device)
    # Nothing after padding is ever looked at, so its row needs no protection. With it, transformers would drop the
    # gradient of a real token wherever padding shares an id with it (end of turn in SmolLM2).
    model.get_input_embeddings().padding_idx = None
    if source.adapter is not None and merge_adapter:
        with quiet():
            model = merged(model, source.adapter)
    return LoadedModel(model.train(), tokenizer, source.shape)


def _read(source: ModelSource, folder: Path, section: ModelSection, device: torch.device) -> PreTrainedModel:
    """Fill the model from its files.

    Given a folder, from_pretrained maps the files: parameters in the files' dtype stay file pages, and for others
    the whole file counts beside them. Given slices of files opened with pread, it reads each into memory of its own.
    """
    config = AutoConfig.from_pretrained(folder)
    config.attention_dropout = 0.0
    with ExitStack() as stack:
        slices = {}
        for file in weight_files(folder):
            opened = stack.enter_context(safe_open(file, framework="pt", device="cpu", backend="pread"))
            slices |= {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
        model, info = _build(config, slices, section, device)
    wrong = sorted(info["missing_keys"]) + sorted(name for name, *_ in info["mismatched_keys"])
    if wrong:
        raise InputError(
            f"model.path = {source.path}: the weight files do not agree with config.json: {len(wrong)} tensors are "
            f"missing or have another shape (for example {', '.join(wrong[:3])}); fetch the model again"
        )
    model.name_or_path = source.path if source.kind == "hub" else str(folder)
    return model


def _random(shape: ModelShape, section: ModelSection, device: torch.device, seed: int) -> PreTrainedModel:
    """Random weights as transformers initialises them, made on the device; the global random state is left alone."""
    if shape.vocab < SIZE:
        raise InputError(
            f"model.path = {shape.name}: a vocabulary of {shape.vocab} is below {SIZE}, bytes and specials"
        )
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model, _ = _build(config_for(shape), {}, section, device)
    model.name_or_path = f"{shape.name} (random weights, seed {seed})"
    return model


def _build(
    config: PretrainedConfig, weights: Mapping[str, Any], section: ModelSection, device: torch.device
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Make the model on the meta device, place the weights one by one and initialise what has none.

    Also returns transformers' account of missing, unexpected and mismatched keys.
    """
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
        None,
        config=config,
        state_dict=weights,
        dtype=DTYPES[section.dtype],
        attn_implementation=section.attention,
        device_map=None if device.type == "cpu" else {"": device},
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )


def _tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.folder)
    except (OSError, ValueError) as error:
        raise InputError(f"model.path = {source.path}: the tokenizer cannot be loaded ({error})") from error
    if tokenizer.eos_token_id is None:
        raise InputError(f"model.path = {source.path}: the tokenizer has no end-of-sequence token (eos_token)")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def config_for(shape: ModelShape) -> PretrainedConfig:
    """transformers' config of a shape; what a shape does not say (RoPE base, epsilon) is the family's default."""
    tokenizer = byte_tokenizer()
    extra: dict[str, Any] = {}
    if shape.family != "qwen2":
        extra["attention_bias"] = shape.output_bias
    if shape.family == "llama":
        extra["mlp_bias"] = shape.mlp_bias
    if shape.experts:
        extra |= {
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.experts_per_token,
            "moe_intermediate_size": shape.expert_ffn,
            "norm_topk_prob": True,
        }
    return AutoConfig.for_model(
        shape.family,
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=shape.context or POSITIONS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **extra,
    )


def plain(model: nn.Module) -> Any:
    """The transformers model itself, adapters inside its layers, without peft's wrapper."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def backbone(model: nn.Module) -> nn.Module:
    """The decoder without the head: called with ids [B, S], `last_hidden_state` [B, S, hidden] after the final norm.

    Pass neither mask nor positions for right-padded ids, and `use_cache=False`: then sdpa takes its causal path and
    no [S, S] tensor exists.
    """
    return plain(model).base_model


def head_weight(model: nn.Module) -> Tensor:
    """The output head [V, hidden]; the embedding itself where they are tied."""
    return plain(model).get_output_embeddings().weight


def set_checkpointing(model: nn.Module, on: bool) -> None:
    """Recompute each block in the backward pass instead of keeping its activations; effective in training mode.

    Non-reentrant, so that a frozen embedding needs no gradient for the adapters behind it to get theirs.
    """
    base = plain(model)
    # transformers renamed the pair between 5.17 and 5.24
    name = "activation" if hasattr(base, "activation_checkpointing_enable") else "gradient"
    if not on:
        getattr(base, f"{name}_checkpointing_disable")()
        return
    # nothing in these models is random, so no random state need be kept for the second forward pass
    how = {"use_reentrant": False, "preserve_rng_state": False}
    getattr(base, f"{name}_checkpointing_enable")(how)
    # transformers makes the embedding's output require gradients, for reentrant checkpointing
    base.disable_input_require_grads()


@contextmanager
def reference_of(model: nn.Module, copy: nn.Module | None) -> Iterator[nn.Module]:
    """The reference model: a frozen copy if there is one, else the model itself with its adapter off."""
    if copy is not None:
        yield copy
        return
    assert isinstance(model, PeftModel)
    with adapter_off(model):
        yield model


def save_model(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, folder: Path, record: Record | None = None
) -> None:
    """Write the model, or the adapter alone of a LoRA run, with the tokenizer, as a folder that
    `AutoModelForCausalLM` or `PeftModel` loads. The folder appears whole; one of the same name is replaced.
    `record` tells what it is, and which base an adapter has.
    """
    written = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    replaced = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    shutil.rmtree(written, ignore_errors=True)
    saved: Any = model
    try:
        with quiet():
            # without the option peft asks the hub whether the vocabulary has grown
            saved.save_pretrained(
                written, **({"save_embedding_layers": False} if isinstance(model, PeftModel) else {})
            )
            tokenizer.save_pretrained(written)
        (written / "README.md").unlink(missing_ok=True)  # peft's model card, an empty form
        if record is not None:
            write_record(written, record)
        if folder.exists():
            folder.rename(replaced)
        written.rename(folder)
    finally:
        shutil.rmtree(written, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' progress bars and advice off the terminal; what matters is raised as an error."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
