import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from headway.config.sections import ObjectiveSection
from headway.train.logprob import token_logprobs
from headway.train.loss import policy_loss
from headway.train.pack import admit, micro_batches, scored, token_weights
from headway.train.records import Sample

PAD = 0


def sample(prompt_ids, response_ids):
    return Sample(0, 0, tuple(prompt_ids), tuple(response_ids), (0.0,) * len(response_ids), "", "stop", 0.0, 0.0)


def samples_of(sizes):
    """Samples of (prompt tokens, response tokens) with tokens that tell where they stand."""
    return [
        sample(range(100 * n + 1, 100 * n + 1 + p), range(100 * n + 51, 100 * n + 51 + r))
        for n, (p, r) in enumerate(sizes)
    ]


def pack(samples, cap, **values):
    ones = [1.0] * len(samples)
    return micro_batches(
        samples, values.get("advantages", ones), values.get("weights", ones), values.get("old"), values.get("ref"),
        cap, PAD,
    )  # fmt: skip


def tiny(family):
    sizes = {
        "vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
        "initializer_range": 0.3, "tie_word_embeddings": False,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    torch.manual_seed(0)
    config = {"llama": LlamaConfig, "qwen3": Qwen3Config}[family](**sizes)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double()


def random_samples(sizes, vocab=61, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [sample(*(torch.randint(0, vocab, (n,), generator=generator).tolist() for n in size)) for size in sizes]


def test_flat_arrays_point_at_the_states_that_predict_the_targets():
    (batch,) = pack(samples_of([(2, 2), (1, 1)]), 100, advantages=[0.5, -1.0], old=[(-1.0, -2.0), (-3.0,)])
    assert batch.ids.tolist() == [[1, 2, 51, 52], [101, 151, PAD, PAD]]
    assert (batch.rows.tolist(), batch.columns.tolist()) == ([0, 0, 1], [1, 2, 0])
    assert torch.equal(batch.ids[batch.rows, batch.columns + 1], batch.targets)
    assert batch.advantages.tolist() == [0.5, 0.5, -1.0]
    assert batch.old_logprobs.tolist() == [-1.0, -2.0, -3.0]
    assert batch.ref_logprobs is None


def test_packs_longest_first_and_counts_padding():
    batches = pack(samples_of([(1, 2), (4, 6), (1, 4), (2, 3), (1, 1)]), 10)
    # 10 alone; 5, 5 fill 10; 3 and 2 take 2 x 3.
    assert [batch.samples for batch in batches] == [(1,), (2, 3), (0, 4)]
    assert [batch.tokens for batch in batches] == [10, 10, 6]


def test_a_sample_over_the_cap_is_alone_and_an_empty_answer_in_no_batch():
    batches = pack(samples_of([(3, 9), (2, 0), (1, 1)]), 4)
    assert [batch.samples for batch in batches] == [(0,), (2,)]
    assert pack(samples_of([(2, 0)]), 4) == []


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=12),
    cap=st.integers(1, 40),
)
def test_every_answer_is_in_one_batch_within_the_cap(sizes, cap):
    samples = samples_of(sizes)
    batches = pack(samples, cap, weights=[float(n) for n in range(len(sizes))])
    packed = [index for batch in batches for index in batch.samples]
    assert sorted(packed) == [n for n, (_, response) in enumerate(sizes) if response]
    for batch in batches:
        assert batch.tokens <= cap or len(batch.samples) == 1
        expected = [token for index in batch.samples for token in samples[index].response_ids]
        assert batch.targets.tolist() == expected
        assert torch.equal(batch.ids[batch.rows, batch.columns + 1], batch.targets)
        owners = [index for index in batch.samples for _ in samples[index].response_ids]
        assert batch.weights.tolist() == [float(index) for index in owners]


def test_weights_are_shares_of_the_optimizer_step():
    lengths = [3, 0, 1, 4]
    by_tokens = token_weights(lengths, "token-mean", 10)
    by_samples = token_weights(lengths, "sample-mean", 10)
    assert by_tokens == [1 / 8, 0.0, 1 / 8, 1 / 8]
    assert by_samples == [1 / 9, 0.0, 1 / 3, 1 / 12]
    for weights in (by_tokens, by_samples):
        assert sum(w * n for w, n in zip(weights, lengths, strict=True)) == pytest.approx(1, rel=1e-15)
    assert token_weights(lengths, "constant", 10) == [1 / 30, 0.0, 1 / 30, 1 / 30]
    assert token_weights([0, 0], "sample-mean", 10) == [0.0, 0.0]
    with pytest.raises(ValueError, match="'sum'"):
        token_weights(lengths, "sum", 10)


def test_admits_up_to_what_the_plan_allows_and_never_less_than_the_cap():
    samples = samples_of([(2, 2), (2, 4), (3, 6)])
    assert admit(samples, cap=4, longest_allowed=6) == (0, 1)
    assert admit(samples, cap=6, longest_allowed=0) == (0, 1)
    assert admit(samples, cap=4, longest_allowed=9) == (0, 1, 2)


def test_a_sample_without_log_probs_is_not_trained_and_one_without_a_response_needs_none():
    samples = samples_of([(2, 2), (2, 1), (3, 0)])
    assert scored((0, 1, 2), samples, None, None) == (0, 1, 2)
    assert scored((0, 1, 2), samples, None, [(-1.0, -2.0), (), ()]) == (0, 2)
    assert scored((1, 2), samples, [(), (-1.0,), ()], [(), (), ()]) == (2,)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_right_padding_without_a_mask_changes_no_state(family):
    model = tiny(family).eval()
    samples = random_samples([(3, 9), (2, 1), (1, 6), (5, 2)])
    (batch,) = pack(samples, 1000)
    with torch.no_grad():
        states = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
        for row, index in enumerate(batch.samples):
            ids = torch.tensor([samples[index].prompt_ids + samples[index].response_ids])
            alone = model.model(input_ids=ids, use_cache=False).last_hidden_state
            torch.testing.assert_close(states[row, : ids.shape[1]], alone[0], rtol=1e-12, atol=1e-12)


def gradients(model, batches):
    objective = ObjectiveSection(kl_coef=0.1, entropy_coef=0.01)
    for batch in batches:
        states = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state[batch.rows, batch.columns]
        logprobs, entropy = token_logprobs(states, model.lm_head.weight, batch.targets, 1.0, 4, True)
        policy_loss(logprobs, entropy, batch, objective)[0].backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return found


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_smaller_batches_give_the_gradient_of_the_whole(family):
    model = tiny(family)
    samples = random_samples([(3, 7), (2, 1), (4, 5), (1, 3), (2, 6)])
    generator = torch.Generator().manual_seed(1)
    values = [
        [tuple((-5 * torch.rand(len(s.response_ids), generator=generator)).tolist()) for s in samples]
        for _ in range(2)
    ]
    weights = token_weights([len(s.response_ids) for s in samples], "sample-mean", 10)

    def packed(cap):
        return micro_batches(samples, [1.0, -0.5, 0.2, -1.0, 0.7], weights, *values, cap, PAD, torch.float64)

    (whole,) = packed(1000)
    expected = gradients(model, [whole])
    assert len(packed(10)) > 2
    for other in (packed(25), packed(10), packed(1)):
        torch.testing.assert_close(gradients(model, other), expected, rtol=1e-12, atol=1e-14)
