"""Answer tokens per second of the embedded engine against transformers' own `generate`, same model and requests.

    OMP_NUM_THREADS=1 python benchmarks/rollout_speed.py [--model FOLDER] [--dtype bf16] [--rounds 5]

Without --model: SmolLM2-135M's shape with random weights. Both sample at temperature 1 with the same end tokens and
batch size, taking turns, so that a busy machine slows both; the ratio is that of the median rates. `groups` asks for
several answers to each prompt, as training does, `distinct` for one. Exit code 1 if a ratio is below 1.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from headway.facts.shapes import by_name
from headway.rollout.engine import Request, SamplingParams
from headway.rollout.hf import HfEngine, end_token_ids
from headway.train.model import config_for
from headway.train.tokenizer import byte_tokenizer


@dataclass(frozen=True)
class Case:
    """Requests of one measurement: prompts of `shortest` to `longest` tokens, each answered `samples` times."""

    name: str
    prompts: int
    samples: int
    shortest: int
    longest: int

    def requests(self, vocab: int) -> list[Request]:
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(self.shortest, self.longest + 1, (self.prompts,), generator=generator)
        lengths[0] = self.longest
        prompts = [tuple(torch.randint(vocab, (int(n),), generator=generator).tolist()) for n in lengths]
        return [Request(ids, (0, 0, at, s)) for at, ids in enumerate(prompts) for s in range(self.samples)]


def load(folder: Path | None, dtype: torch.dtype) -> tuple[Any, PreTrainedTokenizerBase]:
    if folder is not None:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), AutoTokenizer.from_pretrained(folder)
    shape = by_name("smollm2-135M")
    assert shape is not None
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_for(shape), dtype=dtype), byte_tokenizer()


def headway(model: Any, tokenizer: PreTrainedTokenizerBase, requests: list[Request], answer: int) -> int:
    """Generate with the engine, all requests in one batch; answer tokens."""
    engine = HfEngine(model, tokenizer, kv_budget=1 << 34)
    completions = engine.generate(requests, SamplingParams(max_answer=answer))
    return sum(len(completion.token_ids) for completion in completions)


def transformers(model: Any, tokenizer: PreTrainedTokenizerBase, requests: list[Request], answer: int) -> int:
    """Generate with `model.generate`, all requests in one batch; answer tokens up to and with the end token."""
    ends = end_token_ids(model.generation_config.eos_token_id, tokenizer.eos_token_id)
    settings = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=answer,
        eos_token_id=sorted(ends), pad_token_id=min(ends),
    )  # fmt: skip
    longest = max(len(request.prompt_ids) for request in requests)
    ids = torch.full((len(requests), longest), min(ends))
    mask = torch.zeros_like(ids)
    for row, request in enumerate(requests):
        ids[row, longest - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
        mask[row, longest - len(request.prompt_ids) :] = 1
    output = model.eval().generate(ids, attention_mask=mask, generation_config=settings)
    answers = output[:, longest:].tolist()
    return sum(next((at + 1 for at, token in enumerate(row) if token in ends), len(row)) for row in answers)


def rate(generate: Callable[..., int], *arguments: Any) -> float:
    """Tokens per second of one call."""
    began = time.perf_counter()
    tokens = generate(*arguments)
    return tokens / (time.perf_counter() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="a Hugging Face folder")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--answer", type=int, default=32, help="longest answer in tokens")
    options = parser.parse_args()
    model, tokenizer = load(options.model, torch.float32 if options.dtype == "fp32" else torch.bfloat16)
    worst = float("inf")
    print(f"{'case':<12}{'in flight':>10}{'transformers':>14}{'headway':>10}{'ratio':>8}   tokens/s, median")
    for case in (Case("groups", 4, 8, 48, 96), Case("distinct", 32, 1, 48, 96), Case("one", 1, 1, 96, 96)):
        requests = case.requests(len(tokenizer) - 1)
        for generate in (headway, transformers):
            generate(model, tokenizer, requests, 2)
        rates: dict[str, list[float]] = {"headway": [], "transformers": []}
        for _ in range(options.rounds):
            rates["headway"].append(rate(headway, model, tokenizer, requests, options.answer))
            rates["transformers"].append(rate(transformers, model, tokenizer, requests, options.answer))
        ours, theirs = statistics.median(rates["headway"]), statistics.median(rates["transformers"])
        worst = min(worst, ours / theirs)
        print(f"{case.name:<12}{len(requests):>10}{theirs:>14.1f}{ours:>10.1f}{ours / theirs:>8.2f}", flush=True)
    print(f"ratio {worst:.2f}")
    return 0 if worst >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
