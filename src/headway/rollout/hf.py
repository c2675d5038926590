"""The embedded engine: generates with the trainer's own live parameters, in a KV cache bounded by a byte budget."""

import gc
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from headway.facts.configs import trained_from_config
from headway.rollout.allocation import out_of_memory
from headway.rollout.engine import Completion, Request, SamplingParams
from headway.rollout.kvcache import SlabCache, compaction
from headway.rollout.kvplan import PREFILL_TOKENS, kv_token_bytes, split_batches
from headway.rollout.sampling import choose, uniforms
from headway.rollout.stopping import StopWatch, visible_text

COMPACT_SHARE = 4
"""Finished sequences leave the batch when they are at least one in this many."""

EFFICIENT_TOKENS, SLACK = 512, 7 / 8
"""A prefill of this many tokens uses the processor well, so a prompt shorter than this share of the prefill's width
is better off in the next one, with less padding."""


@dataclass
class _Answer:
    """An answer as it grows."""

    request: Request
    watch: StopWatch | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None

    def restart(self, watch: StopWatch | None) -> None:
        """Forget what was generated."""
        self.watch, self.finish = watch, None
        for part in (self.token_ids, self.logprobs, self.versions):
            part.clear()


@dataclass
class _Batch:
    """Sequences in flight, row by row of the cache.

    `lengths` [n] are prompt lengths, `draws` [n, max_answer] the rows' randomness, `mask` [n, capacity] is false on
    left padding (None if no row has any); `tokens` and `logprobs` [n] were chosen last, as the answers' `step`-th.
    """

    answers: list[_Answer]
    lengths: Tensor
    draws: Tensor
    mask: Tensor | None
    tokens: Tensor
    logprobs: Tensor
    step: int = 1

    def compact(self, moves: Sequence[tuple[int, int]], rows: int) -> None:
        """Reorder every row-wise field as the cache does."""
        order = list(range(rows))
        for source, hole in moves:
            order[hole] = source
        index = torch.tensor(order, dtype=torch.int64, device=self.tokens.device)
        self.answers = [self.answers[row] for row in order]
        self.lengths, self.draws = self.lengths[index], self.draws[index]
        self.mask = None if self.mask is None else self.mask[index]
        self.tokens, self.logprobs = self.tokens[index], self.logprobs[index]


class HfEngine:
    """Engine over a transformers causal LM, also inside peft with its adapter on. It holds no weights of its own.

    `kv_budget` bounds the bytes of the KV cache. `device` defaults to the parameters'. `on_progress(done, total,
    tokens)` is called after each token of a batch with the finished answers, all requests, and the tokens so far.
    `on_failure(answers, error)` is called where memory ran out over a batch of several answers, which is then split
    and generated again.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        kv_budget: int,
        device: torch.device | str | None = None,
        on_progress: Callable[[int, int, int], None] | None = None,
        on_failure: Callable[[int, BaseException], None] | None = None,
    ) -> None:
        # peft injects adapters into the base model's layers, so the base model computes with them.
        base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._model = base
        self._tokenizer = tokenizer
        self._kv_budget, self._largest_cache = kv_budget, 0
        self._shape = trained_from_config(base.config.model_type, base.config.to_dict())
        embedding = base.get_input_embeddings().weight
        self._dtype: torch.dtype = embedding.dtype
        self._device = torch.device(device) if device is not None else embedding.device
        # transformers renamed the argument between 5.17 and 5.24.
        arguments = inspect.signature(base.forward).parameters
        self._cache_argument = "cache" if "cache" in arguments else "past_key_values"
        self._end_ids = end_token_ids(base.generation_config.eos_token_id, tokenizer.eos_token_id)
        self._on_progress, self._on_failure = on_progress, on_failure
        self._version = 0
        self._aborted = False
        self._asleep = False

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Answer every request, in the order of the requests.

        InputError if the KV budget does not hold one answer; ValueError for an empty prompt or a key out of range.
        An abort ends it after the current token of every sequence. An allocation that fails over a single answer is
        raised.
        """
        if self._asleep:
            raise RuntimeError("generate() on a sleeping engine: call wake() first")
        if any(not request.prompt_ids for request in requests):
            raise ValueError("a request has an empty prompt")
        answers = [_Answer(request, self._watch(params)) for request in requests]
        # Longest first: the largest allocation comes first. Equal prompts stand side by side.
        ordered = sorted(answers, key=lambda a: (-len(a.request.prompt_ids), a.request.prompt_ids))
        lengths = [len(answer.request.prompt_ids) for answer in ordered]
        batches = split_batches(self._shape, self._dtype.itemsize, self._kv_budget, lengths, params.max_answer)
        waiting = [ordered[start:stop] for start, stop in batches]
        with torch.no_grad(), evaluating(self._model):
            while waiting and not self._aborted:
                batch = waiting.pop(0)
                if not self._fits(batch, params, lambda: self._report(answers)):
                    waiting[:0] = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
        self._aborted = False
        return [self._completion(answer, params) for answer in answers]

    def update_weights(self, version: int) -> None:
        """Name the version of the parameters, which are the trainer's own and need no copying."""
        self._version = version

    def sleep(self, level: int) -> None:  # noqa: ARG002 (the cache lives only inside generate, weights are shared)
        """Refuse to generate until wake(). Nothing is left to free at either level."""
        self._asleep = True

    def wake(self) -> None:
        """Be ready to generate again."""
        self._asleep = False

    def abort(self) -> None:
        """End the answers in flight after their current token; safe in a signal handler and from another thread.

        If nothing is in flight, the next generate() ends at once: a signal must not be lost between two calls.
        """
        self._aborted = True

    def shrink(self, longest: int) -> int:
        """Halve the budget, or the largest cache there was where that is less; what one answer needs stays."""
        least = longest * kv_token_bytes(self._shape, self._dtype.itemsize)
        now = min(self._kv_budget, self._largest_cache or self._kv_budget)
        self._kv_budget, self._largest_cache = max(least, now // 2), 0
        return self._kv_budget

    def close(self) -> None:
        """Let go of the model."""
        self._model = None
        self._asleep = True

    def _watch(self, params: SamplingParams) -> StopWatch | None:
        return StopWatch(self._tokenizer, params.stop) if params.stop else None

    def _fits(self, answers: list[_Answer], params: SamplingParams, report: Callable[[], None]) -> bool:
        """Generate one batch; False, with nothing left of it, where memory ran out over more than one answer."""
        try:
            self._run(answers, params, report)
        except (RuntimeError, MemoryError) as error:
            if len(answers) == 1 or not out_of_memory(error):
                raise
            if self._on_failure is not None:
                self._on_failure(len(answers), error)
        else:
            return True
        for answer in answers:
            answer.restart(self._watch(params))
        gc.collect(1)
        return False

    def _run(self, answers: list[_Answer], params: SamplingParams, report: Callable[[], None]) -> None:
        """Generate one batch; its cache lives as long as this call."""
        prompt = len(answers[0].request.prompt_ids)
        capacity = prompt + params.max_answer
        size = len(answers) * capacity * kv_token_bytes(self._shape, self._dtype.itemsize)
        self._largest_cache = max(self._largest_cache, size)
        cache = SlabCache(self._shape, len(answers), prompt, capacity, self._dtype, self._device)
        batch = self._prefill(answers, cache, params)
        cache.begin_answers()
        while self._record(batch, params):
            report()
            if self._aborted:
                return
            finished = [answer.finish is not None for answer in batch.answers]
            if COMPACT_SHARE * sum(finished) >= len(finished):
                moves, rows = compaction(finished)
                cache.compact(moves, rows)
                batch.compact(moves, rows)
            self._decode(batch, cache, prompt, params)
            cache.advance()
            batch.step += 1
        report()

    def _decode(self, batch: _Batch, cache: SlabCache, prompt: int, params: SamplingParams) -> None:
        """Choose the next token of every sequence. Prompts end at column `prompt`."""
        mask = None if batch.mask is None else batch.mask[:, : prompt + batch.step]
        positions = (batch.lengths + batch.step - 1)[:, None]
        # No name holds the logits: the next forward must not find them still there.
        batch.tokens, batch.logprobs = choose(
            self._forward(batch.tokens[:, None], positions, mask, cache), batch.draws[:, batch.step], params
        )

    def _prefill(self, answers: list[_Answer], cache: SlabCache, params: SamplingParams) -> _Batch:
        """Compute each distinct prompt once, at most PREFILL_TOKENS at a time, and choose the first tokens."""
        keys = [answer.request.key for answer in answers]
        draws = torch.from_numpy(np.stack([uniforms(key, params.max_answer) for key in keys])).to(self._device)
        lengths = torch.tensor([len(answer.request.prompt_ids) for answer in answers], device=self._device)
        longest = int(lengths[0])
        columns = torch.arange(longest + params.max_answer, device=self._device)
        padded = int(lengths[-1]) < longest
        mask = columns >= (longest - lengths)[:, None] if padded else None
        tokens = torch.empty(len(answers), dtype=torch.int64, device=self._device)
        logprobs = torch.empty(len(answers), dtype=torch.float32, device=self._device)
        for groups in prompt_groups(answers):
            start, stop = groups[0][0], groups[-1][1]
            cache.begin_prompts(groups)
            prompts = self._left_padded([answers[first] for first, _ in groups])
            sizes = torch.tensor([stop - start for start, stop in groups], device=self._device)
            rows = torch.arange(len(groups), device=self._device).repeat_interleave(sizes)
            tokens[start:stop], logprobs[start:stop] = choose(
                self._forward(*prompts, cache), draws[start:stop, 0], params, rows
            )
        return _Batch(answers, lengths, draws, mask, tokens, logprobs)

    def _left_padded(self, answers: list[_Answer]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Ids, positions and mask [u, p] of prompts, longest first; the mask is None without padding."""
        longest = len(answers[0].request.prompt_ids)
        lengths = torch.tensor([len(answer.request.prompt_ids) for answer in answers])
        ids = torch.zeros(len(answers), longest, dtype=torch.int64)
        for row, answer in enumerate(answers):
            ids[row, longest - lengths[row] :] = torch.tensor(answer.request.prompt_ids)
        positions = torch.arange(longest) - (longest - lengths)[:, None]
        mask = (positions >= 0).to(self._device) if int(lengths[-1]) < longest else None
        return ids.to(self._device), positions.clamp_(min=0).to(self._device), mask

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: SlabCache) -> Tensor:
        """Logits [b, V] after the last of the new tokens [b, q]; `mask` [b, tokens so far and new]."""
        output = self._model(
            input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=True, logits_to_keep=1,
            **{self._cache_argument: cache},
        )  # fmt: skip
        logits: Tensor = output.logits[:, -1]
        return logits

    def _record(self, batch: _Batch, params: SamplingParams) -> bool:
        """Append the chosen tokens to the unfinished answers; whether any stays unfinished."""
        going = False
        for answer, token, logprob in zip(batch.answers, batch.tokens.tolist(), batch.logprobs.tolist(), strict=True):
            if answer.finish is not None:
                continue
            answer.token_ids.append(token)
            answer.logprobs.append(logprob)
            answer.versions.append(self._version)
            if token in self._end_ids or (answer.watch is not None and answer.watch.push(token)):
                answer.finish = "stop"
            elif len(answer.token_ids) == params.max_answer:
                answer.finish = "length"
            going |= answer.finish is None
        return going

    def _report(self, answers: list[_Answer]) -> None:
        if self._on_progress is not None:
            done = sum(answer.finish is not None for answer in answers)
            self._on_progress(done, len(answers), sum(len(answer.token_ids) for answer in answers))

    def _completion(self, answer: _Answer, params: SamplingParams) -> Completion:
        ids = answer.token_ids
        shown = ids[:-1] if ids and ids[-1] in self._end_ids else ids
        return Completion(
            token_ids=tuple(ids), logprobs=tuple(answer.logprobs), versions=tuple(answer.versions),
            text=visible_text(self._tokenizer, shown, params.stop), finish=answer.finish or "abort",
        )  # fmt: skip


def end_token_ids(*configured: int | list[int] | None) -> frozenset[int]:
    """Every end token that a model or tokenizer names; each names none, one or several.

    >>> sorted(end_token_ids([2, 7], None, 2))
    [2, 7]
    """
    lists = ([] if ids is None else [ids] if isinstance(ids, int) else ids for ids in configured)
    return frozenset(token for ids in lists for token in ids)


def prompt_groups(answers: Sequence[_Answer]) -> Iterator[list[tuple[int, int]]]:
    """Rows [start, stop) that share a prompt; the groups of one prefill at a time, longest prompt first.

    A prefill ends where the next prompt would exceed PREFILL_TOKENS, or add too much padding.
    """
    groups: list[tuple[int, int]] = []
    start = width = 0
    for prompt, members in groupby(answers, key=lambda answer: answer.request.prompt_ids):
        full = (len(groups) + 1) * width > PREFILL_TOKENS
        wasteful = len(groups) * width >= EFFICIENT_TOKENS and len(prompt) < SLACK * width
        if groups and (full or wasteful):
            yield groups
            groups = []
        width = width if groups else len(prompt)
        stop = start + sum(1 for _ in members)
        groups.append((start, stop))
        start = stop
    if groups:
        yield groups


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode and every module back into its own mode afterwards.

    In training mode dropout would sample, and gradient checkpointing would turn the cache off.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
