"""Models that are no plain decoder: BERT's ends, T5's encoder and cross attention, Mamba hybrids."""

from collections import Counter

import pytest
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.blocks import LETTERS, Block, Mamba, by_letters
from headway.plan.activations import Batch
from headway.plan.megatron import fsdp, passes, states
from headway.plan.megatron.activations import layer
from headway.plan.megatron.run import Run

from .runs import GPT, LLAMA, run

BERT = replace(GPT, masked_head=True, head_bias=True)
T5 = replace(GPT, encoder_layers=6, head_bias=True)
STATES = Mamba(heads=32, head_dim=64, groups=8, state=128)
HYBRID = replace(LLAMA, layers=8, letters="M-M*M-M*", mamba=STATES)
BATCH = Batch(2, 512)


def test_bert_s_ends() -> None:
    """Two projections with bias, a norm, an output of two, token types, and a bias of the vocabulary."""
    h = GPT.hidden
    more = BERT.parameters() - GPT.parameters()
    assert more == 2 * (h * h + h) + 2 * h + (2 * h + 2) + 2 * h + GPT.vocab
    work, plain = run(BERT), run(GPT)
    (stage,) = Run.of(work).stages()
    assert states.counts(Run.of(work), stage).all - states.counts(Run.of(plain), stage).all == more

    def tail(work: object) -> int:
        moments = passes.moments(work, Run.of(work), stage, BATCH)  # type: ignore[arg-type]
        return next(moment.kept for moment in moments if moment.at == "loss, forward")

    assert tail(work) - tail(plain) == 3 * 2 * BATCH.tokens * h


def test_only_the_last_stage_has_bert_s_head() -> None:
    work = run(BERT, devices=4, pipeline=4)
    first, *_, last = (states.counts(Run.of(work), stage).all for stage in Run.of(work).stages())
    plain = run(GPT, devices=4, pipeline=4)
    before, *_, after = (states.counts(Run.of(plain), stage).all for stage in Run.of(plain).stages())
    assert first == before
    assert last > after


def test_t5_has_an_encoder_s_blocks_then_the_decoder_s() -> None:
    (stage,) = Run.of(run(T5, encoder_length=1024)).stages()
    assert dict(stage.groups) == {
        Block("encoder", experts=False): 6, Block("full", experts=False, mlp=False): 8,
        Block("cross", experts=False): 8,
    }  # fmt: skip
    h, f = GPT.hidden, GPT.ffn
    attended, mlp, norm = 4 * h * h + 4 * h, 2 * h * f + f + h, 2 * h
    own = 6 * (attended + mlp + 2 * norm) + 8 * (2 * attended + mlp + 3 * norm)
    own += GPT.vocab * h + GPT.vocab + 2048 * h + 2 * norm
    assert T5.parameters() == own
    assert states.counts(Run.of(run(T5)), stage).all == own


def test_cross_attention_has_keys_and_values_of_the_encoder_s_tokens() -> None:
    work = Run.of(run(T5, attention="eager", encoder_length=2048))
    cross = layer(work, BATCH, Block("cross", experts=False)).kept
    own = layer(work, BATCH, Block("full", experts=False)).kept
    far, near = 2 * 2048, BATCH.tokens
    more_pairs = 2 * (2048 - 512) * near * GPT.heads
    assert cross - own == 2 * 2 * (far - near) * GPT.hidden + more_pairs


def test_an_encoder_s_block_is_a_decoder_s_of_other_tokens() -> None:
    work = Run.of(run(T5, encoder_length=2048))
    assert layer(work, BATCH, Block("encoder", experts=False)) == layer(
        work, Batch(2, 2048), Block("full", experts=False)
    )


def test_a_layer_in_halves_is_the_layer() -> None:
    work = Run.of(run(LLAMA))
    whole = layer(work, BATCH, Block("full", experts=False)).kept
    halves = [layer(work, BATCH, LETTERS[letter]).kept for letter in "*-"]
    assert sum(halves) == whole


def test_a_hybrid_s_layers_are_in_order() -> None:
    stages = Run.of(run(HYBRID, devices=2, pipeline=2)).stages()
    assert [Counter(dict(stage.groups)) for stage in stages] == [
        Counter(by_letters(half)) for half in ("M-M*", "M-M*")
    ]
    with pytest.raises(InputError, match="known letters"):
        by_letters("M-X")


def test_bars_say_where_a_stage_s_parts_end() -> None:
    barred = replace(HYBRID, letters="M-M|*-|M-|M*", layers=9)
    stages = Run.of(run(barred, devices=2, pipeline=2, virtual_pipeline=2)).stages()
    assert [[sum(number for _, number in chunk) for chunk in stage.chunks] for stage in stages] == [[3, 2], [2, 2]]
    with pytest.raises(InputError, match="has 4 parts"):
        Run.of(run(barred, devices=2, pipeline=2)).stages()


def test_a_mamba_layer() -> None:
    """Projections, convolution with bias, three numbers a head, gated norm, the layer's norm; kept are both inputs,
    the projection, and the scan's result before and after its norm."""
    h, inner, conv = 1024, 2048, 2048 + 2 * 8 * 128
    block = LETTERS["M"]
    assert HYBRID.block_parameters(block) == h * (inner + conv + 32) + inner * h + 5 * conv + 3 * 32 + inner + h
    for tensor in (1, 2):
        work = Run.of(run(HYBRID, devices=tensor, tensor=tensor))
        width = 4 * h + 2 * (inner + conv + 32) + 4 * inner
        assert layer(work, BATCH, block).kept == BATCH.tokens * width // tensor


def test_deferred_gradients_of_the_output_layer_wait_for_the_last_micro_batch() -> None:
    ranks = {"devices": 2, "pipeline": 2}
    stage = Run.of(run(LLAMA, **ranks)).stages()[-1]

    def tail(**changes: object) -> int:
        work = run(LLAMA, **ranks, **changes)
        return next(m.kept for m in passes.moments(work, Run.of(work), stage, BATCH) if m.at == "loss, backward")

    each = 2 * BATCH.tokens * (LLAMA.hidden + LLAMA.vocab)
    assert tail(defer_gradients=True, deferral_limit=2) - tail() == 2 * each
    assert tail(defer_gradients=True) - tail() == 7 * each
    assert tail(deferral_limit=2) == tail()
    alone = run(LLAMA, defer_gradients=True)
    (whole,) = Run.of(alone).stages()
    assert passes.moments(alone, Run.of(alone), whole, BATCH) == passes.moments(
        run(LLAMA), Run.of(run(LLAMA)), whole, BATCH
    )


@pytest.mark.parametrize(
    ("divided", "shares"), [("optim", (1, 1)), ("optim_grads", (1, 4)), ("optim_grads_params", (4, 4))]
)
def test_megatron_s_own_fsdp_divides_gradients_then_parameters(divided: str, shares: tuple[int, int]) -> None:
    work = run(LLAMA, devices=4, fsdp=divided)
    (stage,) = Run.of(work).stages()
    found = {item.item: item.bytes for item in states.items(Run.of(work), stage, stepped=True)}
    count = LLAMA.parameters()
    assert found["weights"] == pytest.approx(2 * count / shares[0], rel=1e-6)
    assert found["gradient buffer"] == pytest.approx(4 * count / shares[1], rel=1e-6)
    assert found["optimizer state"] == pytest.approx(12 * count / 4, rel=1e-6)


def test_fsdp_gathers_ahead_and_lets_gradients_wait_by_elements() -> None:
    """All layers of a small stage, and its table; backward one layer's gradients first, then all of them."""
    (stage,) = Run.of(run(LLAMA)).stages()
    block, table = LLAMA.block_parameters(), LLAMA.hidden * LLAMA.vocab
    every = 8 * block + table
    both = fsdp.gathered(Run.of(run(LLAMA, devices=4, fsdp="optim_grads_params")), stage)
    assert both == (2 * every, 4 * (block + table), 4 * every, 8)
    assert fsdp.gathered(Run.of(run(LLAMA, devices=4, fsdp="optim_grads")), stage) == (0, *both[1:])
    assert fsdp.gathered(Run.of(run(LLAMA, devices=4, fsdp="optim")), stage) == (0, 0, 0, 0)


def test_fsdp_of_large_layers_has_three_of_them() -> None:
    """Layers of more than 500 million elements: the one that computes and the next, and three gradients."""
    wide = replace(LLAMA, hidden=8192, ffn=32768, heads=64, kv_heads=64, head_dim=128)
    (stage,) = Run.of(run(wide)).stages()
    block, table = wide.block_parameters(), wide.hidden * wide.vocab
    assert block > 500_000_000
    found = fsdp.gathered(Run.of(run(wide, devices=4, fsdp="optim_grads_params")), stage)
    assert found == (2 * (2 * block + table), 4 * (block + table), 4 * (3 * block + table), 3)


def test_gradients_that_wait_meet_fewer_activations() -> None:
    work = run(LLAMA, devices=4, fsdp="optim_grads_params", rows=1)
    (stage,) = Run.of(work).stages()
    found = {each.at: each for each in passes.moments(work, Run.of(work), stage, BATCH)}
    first, last = found["backward, last layer"], found["backward, gradients wait"]
    assert last.kept < first.kept
    assert last.working - first.working == 4 * 7 * LLAMA.block_parameters()
    # near miss: nothing waits where gradients are not divided
    plain = run(LLAMA, devices=4)
    assert "backward, gradients wait" not in {each.at for each in passes.moments(plain, Run.of(plain), stage, BATCH)}


def test_a_group_of_micro_batches_leaves_no_rest_smaller_than_the_stages() -> None:
    work = run(LLAMA, devices=4, pipeline=4, virtual_pipeline=2, accumulated=5)
    stage = Run.of(work).stages()[-1]
    assert passes.in_flight(stage, 5) == (5, 1)
    assert passes.in_flight(stage, 8) == (4, 1)
