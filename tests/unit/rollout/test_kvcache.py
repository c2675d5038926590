import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.facts.configs import from_config
from headway.rollout.kvcache import SlabCache, compaction
from headway.rollout.kvplan import kv_token_bytes

from .tiny_models import config

SHAPE = from_config("tiny", config("qwen3").to_dict())
CPU = torch.device("cpu")


def states(rows: int, tokens: int) -> torch.Tensor:
    return torch.randn(rows, SHAPE.kv_heads, tokens, SHAPE.head_dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_rows_times_capacity_times_token_bytes(dtype):
    cache = SlabCache(SHAPE, rows=3, prompt=4, capacity=9, dtype=dtype, device=CPU)
    assert cache.nbytes == 3 * 9 * kv_token_bytes(SHAPE, dtype.itemsize)
    parts = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    assert len({tensor.untyped_storage().data_ptr() for tensor in parts}) == 1
    assert sum(tensor.nbytes for tensor in parts) == cache.nbytes


def test_prompts_end_at_the_prompt_column_of_every_row_of_their_group():
    cache = SlabCache(SHAPE, rows=5, prompt=4, capacity=6, dtype=torch.float32, device=CPU)
    first, second = states(2, 4), states(1, 3)
    cache.begin_prompts([(0, 2), (2, 3)])
    attended, _ = cache.update(first, -first, 1)
    assert attended is first
    cache.begin_prompts([(3, 5)])
    assert cache.get_seq_length() == 0
    assert cache.get_mask_sizes(3, 0) == (3, 0)
    cache.update(second, -second, 1)
    cache.begin_answers()
    assert cache.get_seq_length() == 4
    token = states(5, 1)
    keys, values = cache.update(token, -token, 1)
    assert keys.shape == (5, SHAPE.kv_heads, 5, SHAPE.head_dim)
    for row, prompt in enumerate((first[0], first[0], first[1])):
        torch.testing.assert_close(keys[row, :, :4], prompt, atol=0, rtol=0)
    for row in (3, 4):
        torch.testing.assert_close(keys[row, :, 1:4], second[0], atol=0, rtol=0)
        assert not keys[row, :, 0].any()  # padding is finite
    torch.testing.assert_close(keys[:, :, 4:], token, atol=0, rtol=0)
    torch.testing.assert_close(values, -keys, atol=0, rtol=0)


def test_tokens_are_written_in_place_and_compaction_keeps_the_unfinished():
    cache = SlabCache(SHAPE, rows=4, prompt=2, capacity=5, dtype=torch.float32, device=CPU)
    cache.begin_prompts([(row, row + 1) for row in range(4)])
    history = states(4, 2)
    for layer in range(SHAPE.layers):
        cache.update(history, -history, layer)
    cache.begin_answers()
    place = cache.layers[0].keys.data_ptr()
    for finished in ([False, False, False, False], [False, True, False, False], [True, False, False]):
        moves, rows = compaction(finished)
        cache.compact(moves, rows)
        kept = history[: len(finished)].clone()
        for source, hole in moves:
            kept[hole] = kept[source]
        token = states(rows, 1)
        history = torch.cat([kept[:rows], token], dim=2)
        for layer in range(SHAPE.layers):
            keys, values = cache.update(token, -token, layer)
            torch.testing.assert_close(keys, history, atol=0, rtol=0)
            torch.testing.assert_close(values, -history, atol=0, rtol=0)
            assert layer > 0 or keys.data_ptr() == place
        cache.advance()
    assert cache.get_seq_length() == cache.get_max_length() == 5


@given(st.lists(st.booleans(), max_size=40))
def test_compaction_moves_each_late_survivor_into_a_finished_place(finished):
    moves, rows = compaction(finished)
    order = list(range(rows))
    for source, hole in moves:
        assert finished[hole]
        order[hole] = source
    assert sorted(order) == [row for row, done in enumerate(finished) if not done]
    assert len(moves) == sum(not done for done in finished[rows:])
