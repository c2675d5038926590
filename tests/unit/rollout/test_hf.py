import threading
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from headway.errors import InputError
from headway.facts.configs import from_config
from headway.facts.shapes import ModelShape
from headway.rollout import hf, kvplan
from headway.rollout.engine import Completion, Request, SamplingParams
from headway.rollout.hf import HfEngine
from headway.rollout.kvcache import SlabCache
from headway.rollout.kvplan import kv_token_bytes, peak_kv_bytes

from ..train.live_bytes import LiveBytes
from .tiny_models import END, FAMILIES, VOCAB, config, model, prompts, tokenizer

ROOMY = 1 << 30
LENGTH = 12
GREEDY = SamplingParams(max_answer=LENGTH, temperature=0)


def requests(prompt_ids: Sequence[tuple[int, ...]], step: int = 0) -> list[Request]:
    return [Request(ids, (0, step, index, 0)) for index, ids in enumerate(prompt_ids)]


def greedy_by_transformers(net, prompt: tuple[int, ...]) -> tuple[int, ...]:
    ends = net.generation_config.eos_token_id
    settings = GenerationConfig(max_new_tokens=LENGTH, do_sample=False, eos_token_id=ends, pad_token_id=END)
    ids = torch.tensor([prompt])
    answer = net.eval().generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return tuple(answer[0, len(prompt) :].tolist())


def full_logprobs(net, prompt: tuple[int, ...], answer: tuple[int, ...], temperature: float = 1.0) -> Tensor:
    """Log-probabilities of the answer from one forward over prompt and answer, without cache or padding."""
    with torch.no_grad():
        logits = net(input_ids=torch.tensor([prompt + answer]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.double() / temperature, -1).gather(1, torch.tensor(answer)[:, None])[:, 0]


def shape_of(net) -> ModelShape:
    return from_config("tiny", net.config.to_dict())


@pytest.mark.parametrize("fails_at", [1, 5])
def test_a_batch_over_which_memory_runs_out_is_split_and_gives_the_same_answers(fails_at, monkeypatch):
    net, asked, params = model("qwen3"), prompts(7, longest=9), SamplingParams(max_answer=LENGTH, stop=("ab",))
    expected = HfEngine(net, tokenizer(), ROOMY).generate(requests(asked), params)
    failed, sizes, calls = [], [], iter(range(10_000))
    forward = HfEngine._forward

    def scarce(self, ids, positions, mask, cache):
        if len(ids) > 2 and next(calls) >= fails_at - 1:
            torch.empty(1 << 60)
        sizes.append(len(ids))
        return forward(self, ids, positions, mask, cache)

    monkeypatch.setattr(HfEngine, "_forward", scarce)
    engine = HfEngine(net, tokenizer(), ROOMY, on_failure=lambda answers, error: failed.append((answers, str(error))))
    assert answers_differ(engine.generate(requests(asked), params), expected) == []
    assert [answers for answers, _ in failed] == [7, 3, 4]
    assert "DefaultCPUAllocator" in failed[0][1]


def test_memory_that_runs_out_over_one_answer_is_an_error(monkeypatch):
    engine = HfEngine(model("qwen3"), tokenizer(), ROOMY)
    monkeypatch.setattr(HfEngine, "_forward", lambda *_: torch.empty(1 << 60))
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        engine.generate(requests(prompts(4, longest=9)), GREEDY)


def test_a_smaller_budget_is_half_of_what_was_held_and_holds_one_answer():
    net = model("qwen3")
    asked = prompts(6, longest=8)
    engine = HfEngine(net, tokenizer(), ROOMY)
    expected = engine.generate(requests(asked), GREEDY)
    token, longest = kv_token_bytes(shape_of(net), 4), 8 + LENGTH
    held = max(map(len, asked)) + LENGTH
    assert engine.shrink(longest) == max(longest, 6 * held // 2) * token
    assert answers_differ(engine.generate(requests(asked), GREEDY), expected) == []
    for _ in range(5):
        least = engine.shrink(longest)
    assert least == longest * token
    assert answers_differ(engine.generate(requests(asked), GREEDY), expected) == []


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_transformers_generate(family, attention):
    net = model(family, attention)
    asked = prompts(5, longest=12)
    answers = HfEngine(net, tokenizer(), ROOMY).generate(requests(asked), GREEDY)
    expected = [greedy_by_transformers(net, prompt) for prompt in asked]
    assert [answer.token_ids for answer in answers] == expected
    assert len(set(expected)) > 1  # the model tells prompts apart


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_equal_a_full_forward(family):
    net = model(family)
    asked = prompts(4, longest=12) * 2
    params = SamplingParams(max_answer=LENGTH, temperature=0.7, top_p=0.9, top_k=20)
    for prompt, answer in zip(
        asked, HfEngine(net, tokenizer(), ROOMY).generate(requests(asked), params), strict=True
    ):
        expected = full_logprobs(net.eval(), prompt, answer.token_ids, 0.7)
        torch.testing.assert_close(torch.tensor(answer.logprobs).double(), expected, atol=1e-5, rtol=0)


def test_greedy_logprobs_are_those_of_temperature_one():
    net = model("llama")
    prompt = prompts(1, longest=8)[0]
    (answer,) = HfEngine(net, tokenizer(), ROOMY).generate(requests([prompt]), GREEDY)
    expected = full_logprobs(net.eval(), prompt, answer.token_ids)
    torch.testing.assert_close(torch.tensor(answer.logprobs).double(), expected, atol=1e-5, rtol=0)


class SpyCache(SlabCache):
    """Notes the bytes of every cache that the engine makes, and that no two live at once."""

    sizes: ClassVar[list[int]] = []
    rows: ClassVar[list[int]] = []
    alive = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        SpyCache.sizes.append(self._slab.untyped_storage().nbytes())
        SpyCache.alive += 1
        assert SpyCache.alive == 1

    def compact(self, moves, rows):
        super().compact(moves, rows)
        SpyCache.rows.append(rows)

    def __del__(self):
        SpyCache.alive -= 1


@pytest.fixture
def spy(monkeypatch):
    SpyCache.sizes, SpyCache.rows, SpyCache.alive = [], [], 0
    monkeypatch.setattr(hf, "SlabCache", SpyCache)
    return SpyCache


@pytest.mark.parametrize("in_flight", [1, 5, 12])
def test_a_small_budget_splits_the_batch_and_changes_no_answer(spy, in_flight):
    net = model("llama")
    asked = prompts(12, longest=12)
    shape = shape_of(net)
    budget = in_flight * kv_token_bytes(shape, 4) * (12 + LENGTH)
    answers = HfEngine(net, tokenizer(), budget).generate(requests(asked), GREEDY)
    assert answers_differ(answers, HfEngine(net, tokenizer(), ROOMY).generate(requests(asked), GREEDY)) == []
    caches = spy.sizes[:-1]
    assert len(caches) >= 12 // in_flight / 2
    assert max(caches) <= budget
    assert max(caches) == peak_kv_bytes(shape, 4, budget, [len(prompt) for prompt in asked], LENGTH)


def answers_differ(left: Sequence[Completion], right: Sequence[Completion]) -> list[int]:
    return [at for at, (a, b) in enumerate(zip(left, right, strict=True)) if a.token_ids != b.token_ids]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_answers_that_end_early_leave_the_batch_without_a_trace(spy, attention):
    net = model("llama", attention)
    net.generation_config.eos_token_id = [END, *range(60)]
    asked = prompts(9, longest=12)
    answers = HfEngine(net, tokenizer(), ROOMY).generate(requests(asked), GREEDY)
    assert [answer.token_ids for answer in answers] == [greedy_by_transformers(net, prompt) for prompt in asked]
    assert len(spy.rows) >= 2
    assert spy.rows == sorted(spy.rows, reverse=True)


def test_beside_the_cache_only_one_batch_of_logits_lives(spy, monkeypatch):
    torch.manual_seed(0)
    vocab, count = 20_000, 16
    net = LlamaForCausalLM(LlamaConfig(**config("llama").to_diff_dict() | {"vocab_size": vocab}))
    monkeypatch.setattr(kvplan, "SLICE_BYTES", {"cpu": 4 * vocab})
    engine = HfEngine(net, tokenizer(), ROOMY)
    asked = [Request(prompt, (0, 0, at, s)) for at, prompt in enumerate(prompts(4, longest=6)) for s in range(4)]
    with LiveBytes(*net.parameters()) as live:
        engine.generate(asked, SamplingParams(max_answer=LENGTH))
    logits = 4 * vocab
    assert live.peak < spy.sizes[0] + (count + 4) * logits + 100_000


def test_no_cache_outlives_generate(spy):
    engine = HfEngine(model("llama"), tokenizer(), ROOMY)
    engine.generate(requests(prompts(3, longest=5)), GREEDY)
    assert spy.alive == 0


def test_a_budget_below_one_answer_is_an_input_error():
    net = model("llama")
    budget = kv_token_bytes(shape_of(net), 4) * 19
    with pytest.raises(InputError, match=r"rollout.kv_budget = .* holds 19 tokens .* needs 20"):
        HfEngine(net, tokenizer(), budget).generate([Request((1,) * 8, (0, 0, 0, 0))], GREEDY)


def test_equal_prompts_are_prefilled_once_and_prefill_is_bounded(monkeypatch):
    net = model("llama")
    asked = [prompt for prompt in prompts(6, longest=10) for _ in range(4)]
    seen: list[tuple[int, int]] = []
    net.register_forward_pre_hook(
        lambda _net, _args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    params = SamplingParams(max_answer=1)
    whole = HfEngine(net, tokenizer(), ROOMY).generate(requests(asked), params)
    assert seen == [(6, max(map(len, asked)))]
    seen.clear()
    monkeypatch.setattr(hf, "PREFILL_TOKENS", 16)
    assert HfEngine(net, tokenizer(), ROOMY).generate(requests(asked), params) == [
        Completion(a.token_ids, pytest.approx(a.logprobs, abs=1e-5), a.versions, a.text, a.finish) for a in whole
    ]
    assert len(seen) > 1
    assert all(rows * width <= 16 or rows == 1 for rows, width in seen)


def test_short_prompts_are_not_padded_to_much_longer_ones(monkeypatch):
    net = model("llama")
    asked = [(token,) * length for token, length in enumerate((40, 39, 38, 37, 20, 19, 18, 2))]
    seen: list[tuple[int, int]] = []
    net.register_forward_pre_hook(
        lambda _net, _args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    monkeypatch.setattr(hf, "EFFICIENT_TOKENS", 60)
    answers = HfEngine(net, tokenizer(), ROOMY).generate(requests(asked), GREEDY)
    assert seen[:3] == [(4, 40), (3, 20), (1, 2)]
    assert [answer.token_ids for answer in answers] == [greedy_by_transformers(net, prompt) for prompt in asked]


class Bigram(nn.Module):
    """Answers as a causal LM does, with logits that depend on the last token alone, bit for bit in any batch."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.table = nn.Embedding(VOCAB, VOCAB, _weight=2 * torch.randn(VOCAB, VOCAB, generator=generator))
        self.config = config("llama")
        self.generation_config = GenerationConfig(eos_token_id=[END, 7])

    def get_input_embeddings(self) -> nn.Embedding:
        return self.table

    def forward(self, input_ids, position_ids, attention_mask, use_cache, logits_to_keep, cache):
        return CausalLMOutputWithPast(logits=self.table(input_ids[:, -1:]))


@pytest.mark.parametrize("params", [
    SamplingParams(max_answer=40), SamplingParams(max_answer=40, temperature=1.5, top_p=0.8, top_k=50),
])  # fmt: skip
def test_the_same_key_answers_the_same_beside_any_other_requests(params):
    asked = [Request(prompt, (5, 1, index, s)) for index, prompt in enumerate(prompts(6, 9)) for s in range(4)]
    engine = HfEngine(Bigram(), tokenizer(), ROOMY)
    together = engine.generate(asked, params)
    assert [engine.generate([request], params)[0] for request in asked] == together
    assert engine.generate(asked[::-1], params)[::-1] == together
    assert engine.generate(asked[3:20:2], params) == together[3:20:2]
    assert len({answer.token_ids for answer in together}) > 20  # samples of one prompt differ
    assert {answer.finish for answer in together} == {"stop", "length"}  # so the batch was compacted on the way


def test_a_real_model_answers_the_same_beside_other_requests():
    net = model("qwen3")
    asked = [Request(prompt, (5, 1, index, s)) for index, prompt in enumerate(prompts(5, 9)) for s in range(3)]
    engine = HfEngine(net, tokenizer(), ROOMY)
    together = engine.generate(asked, SamplingParams(max_answer=12))
    for request, expected in zip(asked, together, strict=True):
        (alone,) = engine.generate([request], SamplingParams(max_answer=12))
        assert alone.token_ids == expected.token_ids


def test_another_step_answers_otherwise():
    engine = HfEngine(Bigram(), tokenizer(), ROOMY)
    params = SamplingParams(max_answer=20)
    asked = prompts(4, 9)
    assert answers_differ(engine.generate(requests(asked, 0), params), engine.generate(requests(asked, 1), params))


def test_every_end_token_ends_an_answer_and_no_text_shows_it():
    engine = HfEngine(Bigram(), tokenizer(), ROOMY)
    answers = engine.generate(requests(prompts(64, 4)), SamplingParams(max_answer=200))
    ended = [answer for answer in answers if answer.finish == "stop"]
    assert {answer.token_ids[-1] for answer in ended} == {END, 7}
    for answer in answers:
        body = answer.token_ids[:-1] if answer.finish == "stop" else answer.token_ids
        assert not {END, 7} & set(body)
        assert answer.text == tokenizer().decode([token for token in body if token < END])
        assert len(answer.token_ids) == len(answer.logprobs) == len(answer.versions)
        assert answer.finish == "stop" or len(answer.token_ids) == 200


class Scripted(Bigram):
    """Says a text byte after byte: the successor of each byte of the script is the next one (bytes are distinct)."""

    def __init__(self, script: str) -> None:
        super().__init__()
        ids = tokenizer().encode(script)
        assert len(set(ids)) == len(ids)
        with torch.no_grad():
            self.table.weight.zero_()
            for now, then in zip(ids, [*ids[1:], END], strict=True):
                self.table.weight[now, then] = 50.0


@pytest.mark.parametrize(
    ("stops", "text", "finish"),
    [
        ((), "bcd ü€fg", "stop"),
        (("fg",), "bcd ü€", "stop"),
        (("zz", "d ü"), "bc", "stop"),
        (("€f", "fg"), "bcd ü", "stop"),
        (("<end>",), "bcd ü€fg", "stop"),
    ],
)
def test_stop_texts(stops, text, finish):
    engine = HfEngine(Scripted("abcd ü€fg"), tokenizer(), ROOMY)
    prompt = tuple(tokenizer().encode("a"))
    (answer,) = engine.generate(
        [Request(prompt, (0, 0, 0, 0))], SamplingParams(max_answer=50, temperature=0, stop=stops)
    )
    assert (answer.text, answer.finish) == (text, finish)
    generated = tokenizer().decode(list(answer.token_ids), skip_special_tokens=True)
    assert generated == text + next((stop for stop in stops if stop in generated), "")


def test_versions_name_the_weights_of_each_token():
    engine = HfEngine(Bigram(), tokenizer(), ROOMY)
    engine.update_weights(41)
    assert set(engine.generate(requests([(1,)]), GREEDY)[0].versions) == {41}


def test_weights_are_the_trainers_own():
    net = model("llama")
    engine = HfEngine(net, tokenizer(), ROOMY)
    asked = requests(prompts(3, longest=6))
    before = engine.generate(asked, GREEDY)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    engine.update_weights(1)
    after = engine.generate(asked, GREEDY)
    assert answers_differ(before, after)
    expected = [greedy_by_transformers(net, request.prompt_ids) for request in asked]
    assert [answer.token_ids for answer in after] == expected


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft reads it
def test_an_adapter_that_is_on_is_used():
    net = model("llama")
    asked = requests(prompts(4, longest=6))
    base = HfEngine(net, tokenizer(), ROOMY).generate(asked, GREEDY)
    wrapped = get_peft_model(net, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    engine = HfEngine(wrapped, tokenizer(), ROOMY)
    adapted = engine.generate(asked, GREEDY)
    assert answers_differ(base, adapted)
    assert [a.token_ids for a in adapted] == [greedy_by_transformers(wrapped, r.prompt_ids) for r in asked]
    with wrapped.disable_adapter():
        assert answers_differ(base, engine.generate(asked, GREEDY)) == []


def test_training_mode_checkpointing_and_gradients_are_as_before():
    net = model("llama")
    # The old name warns in transformers 5.24, the new one is not in 5.17.
    getattr(net, "activation_checkpointing_enable", net.gradient_checkpointing_enable)()
    net.train()
    net.model.layers[1].eval()
    net.model.layers[0].self_attn.attention_dropout = 0.9
    modes = {name: module.training for name, module in net.named_modules()}
    asked = prompts(3, longest=6)
    answers = HfEngine(net, tokenizer(), ROOMY).generate(requests(asked), GREEDY)
    assert {name: module.training for name, module in net.named_modules()} == modes
    assert [answer.token_ids for answer in answers] == [greedy_by_transformers(net, prompt) for prompt in asked]
    # The reference above left the model in eval mode; gradients must still flow to every parameter.
    net.train()
    net(input_ids=torch.tensor([asked[0]]), use_cache=False).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_bf16_generates_and_scores_itself():
    net = model("llama").bfloat16()
    prompt = prompts(1, longest=8)[0]
    (answer,) = HfEngine(net, tokenizer(), ROOMY).generate(requests([prompt]), SamplingParams(max_answer=12))
    expected = full_logprobs(net.eval(), prompt, answer.token_ids)
    torch.testing.assert_close(torch.tensor(answer.logprobs).double(), expected, atol=0.3, rtol=0)


def test_abort_from_a_callback_ends_at_the_next_token():
    engine = HfEngine(Bigram(), tokenizer(), kv_token_bytes(shape_of(Bigram()), 4) * 4 * 109)
    seen = []

    def stop_after_three(done: int, total: int, tokens: int) -> None:
        seen.append((done, total, tokens))
        if len(seen) == 3:
            engine.abort()

    engine._on_progress = stop_after_three
    params = SamplingParams(max_answer=100, temperature=0.01)
    answers = engine.generate(requests(prompts(8, longest=9)), params)
    lengths = sorted(len(answer.token_ids) for answer in answers)
    assert lengths == [0, 0, 0, 0, 3, 3, 3, 3]  # the second batch of four never started
    assert {answer.finish for answer in answers} == {"abort"}
    assert seen == [(0, 8, 4), (0, 8, 8), (0, 8, 12)]
    engine._on_progress = None
    assert "abort" not in {answer.finish for answer in engine.generate(requests([(1,)]), params)}


def test_abort_from_another_thread():
    net = Bigram()
    with torch.no_grad():
        net.table.weight[:, END] = net.table.weight[:, 7] = -100.0
    engine = HfEngine(net, tokenizer(), ROOMY)
    timer = threading.Timer(0.3, engine.abort)
    timer.start()
    (answer,) = engine.generate(requests([(1,)]), SamplingParams(max_answer=100_000))
    timer.join()
    assert answer.finish == "abort"
    assert 0 < len(answer.token_ids) < 100_000


def test_abort_between_two_calls_is_not_lost():
    engine = HfEngine(Bigram(), tokenizer(), ROOMY)
    engine.abort()
    assert engine.generate(requests([(1,)]), GREEDY) == [Completion((), (), (), "", "abort")]
    assert engine.generate(requests([(1,)]), GREEDY)[0].finish != "abort"


def test_progress_counts_answers_and_tokens():
    seen = []
    engine = HfEngine(Bigram(), tokenizer(), ROOMY, on_progress=lambda *counts: seen.append(counts))
    answers = engine.generate(requests(prompts(5, longest=4)), SamplingParams(max_answer=30))
    assert seen[-1] == (5, 5, sum(len(answer.token_ids) for answer in answers))
    assert seen == sorted(seen)


def test_sleeping_and_closed_engines_do_not_generate():
    engine = HfEngine(Bigram(), tokenizer(), ROOMY)
    engine.sleep(1)
    with pytest.raises(RuntimeError, match="wake"):
        engine.generate(requests([(1,)]), GREEDY)
    engine.wake()
    assert engine.generate(requests([(1,)]), GREEDY)[0].token_ids
    engine.close()
    with pytest.raises(RuntimeError, match="wake"):
        engine.generate(requests([(1,)]), GREEDY)


def test_no_requests_and_an_empty_prompt():
    engine = HfEngine(Bigram(), tokenizer(), ROOMY)
    assert engine.generate([], GREEDY) == []
    with pytest.raises(ValueError, match="empty prompt"):
        engine.generate(requests([()]), GREEDY)
