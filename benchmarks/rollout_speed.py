"""Answer tokens per second of the embedded engine against transformers' own `generate`, same model and requests.

    OMP_NUM_THREADS=1 python benchmarks/rollout_speed.py [--model FOLDER] [--dtype bf16] [--rounds 5]

Without --model: SmolLM2-135M's shape with random weights. Both sample at temperature 1 with the same end tokens and
batch size, taking turns, so that a busy machine slows both; the ratio is that of the median rates. `groups` asks for
several answers to each prompt, as training does, `distinct` for one; exit code 1 if either ratio is below 1. With
`one` sequence both wait for the same weights to be read, and the ratio is 1 within noise. The last column is the
ratio in CPU time, which other processes disturb less.
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


@dataclass(frozen=True)
class Rate:
    """Tokens per second of wall time and of CPU time of all threads."""

    wall: float
    cpu: float


def rate(generate: Callable[..., int], *arguments: Any) -> Rate:
    """The rates of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = generate(*arguments)
    return Rate(tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu))


def compare(measure: Callable[[Callable[..., int]], Rate], rounds: int) -> tuple[Rate, Rate]:
    """Median rates of the engine and of transformers, measured in turns."""
    taken: tuple[list[Rate], list[Rate]] = ([], [])
    for _ in range(rounds):
        taken[0].append(measure(headway))
        taken[1].append(measure(transformers))
    ours, theirs = (
        Rate(statistics.median(r.wall for r in rates), statistics.median(r.cpu for r in rates)) for rates in taken
    )
    return ours, theirs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="a Hugging Face folder")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--answer", type=int, default=32, help="longest answer in tokens")
    options = parser.parse_args()
    model, tokenizer = load(options.model, torch.float32 if options.dtype == "fp32" else torch.bfloat16)
    worst = float("inf")
    print(f"{'case':<12}{'in flight':>10}{'transformers':>14}{'headway':>10}{'ratio':>8}{'CPU ratio':>11}")
    for case in (Case("groups", 4, 8, 48, 96), Case("distinct", 32, 1, 48, 96), Case("one", 1, 1, 96, 96)):
        requests = case.requests(len(tokenizer) - 1)
        for generate in (headway, transformers):
            generate(model, tokenizer, requests, 2)
        ours, theirs = compare(
            lambda generate, requests=requests: rate(generate, model, tokenizer, requests, options.answer),
            options.rounds,
        )
        ratio = ours.wall / theirs.wall
        worst = min(worst, ratio) if len(requests) > 1 else worst
        print(
            f"{case.name:<12}{len(requests):>10}{theirs.wall:>14.1f}{ours.wall:>10.1f}{ratio:>8.2f}"
            f"{ours.cpu / theirs.cpu:>11.2f}",
            flush=True,
        )
    print(f"ratio {worst:.2f} (lowest with several in flight; rates are tokens/s, median of {options.rounds})")
    return 0 if worst >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
