"""Random models of every family, small enough for a test, and a byte-level tokenizer for them."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "gemma")
VOCAB = 300
END = 256


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, 256 is the end token; ids above have no text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={piece: at for at, piece in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    built = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
    assert built.eos_token_id == END
    return built


def config(family: str) -> PreTrainedConfig:
    common = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "eos_token_id": END, "bos_token_id": None, "pad_token_id": None,
        # Wide enough that the random model's choices are clear and differ from prompt to prompt.
        "initializer_range": 0.2,
    }  # fmt: skip
    if family == "llama":
        return LlamaConfig(**common)
    if family == "qwen2":
        return Qwen2Config(**common)
    if family == "qwen3":
        return Qwen3Config(**common, head_dim=16)
    if family == "qwen3_moe":
        return Qwen3MoeConfig(**common, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
    return GemmaConfig(**common, head_dim=16)


def model(family: str, attention: str = "sdpa", seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    built = AutoModelForCausalLM.from_config(config(family), attn_implementation=attention)
    return built.float()


def prompts(count: int, longest: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Random prompts of different lengths, 1 .. longest."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [tuple(torch.randint(0, 256, (length,), generator=generator).tolist()) for length in lengths]
