import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import InputError
from headway.facts.shapes import by_name
from headway.plan import kvcache
from headway.rollout import kvplan
from headway.rollout.kvplan import kv_token_bytes, peak_kv_bytes, sequences_in_flight, split_batches
from headway.units import parse_bytes

SHAPE = by_name("qwen3-0.6B")
TOKEN = 2 * 28 * 8 * 128 * 2


def test_sequences_in_flight_counts_whole_answers():
    assert kv_token_bytes(SHAPE, 2) == TOKEN
    assert sequences_in_flight(SHAPE, 2, 10 * 50 * TOKEN, 50) == 10
    assert sequences_in_flight(SHAPE, 2, 10 * 50 * TOKEN - 1, 50) == 9


def test_the_error_names_a_budget_that_is_enough():
    with pytest.raises(InputError) as caught:
        sequences_in_flight(SHAPE, 2, 49 * TOKEN, 50)
    message = str(caught.value)
    assert "holds 49 tokens" in message
    assert "needs 50" in message
    suggested = parse_bytes(message.split("at least ")[1].split(",")[0])
    assert sequences_in_flight(SHAPE, 2, suggested, 50) == 1


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.integers(1, 100), st.integers(0, 5000))
def test_batches_cover_all_requests_within_the_budget(lengths, max_answer, spare_tokens):
    lengths = sorted(lengths, reverse=True)
    budget = (lengths[0] + max_answer + spare_tokens) * TOKEN
    batches = split_batches(SHAPE, 2, budget, lengths, max_answer)
    assert [row for start, stop in batches for row in range(start, stop)] == list(range(len(lengths)))
    sizes = [(stop - start) * (lengths[start] + max_answer) * TOKEN for start, stop in batches]
    assert max(sizes) <= budget
    assert peak_kv_bytes(SHAPE, 2, budget, lengths[::-1], max_answer) == max(sizes)
    # No batch could have taken the next request too.
    for start, stop in batches[:-1]:
        assert (stop - start + 1) * (lengths[start] + max_answer) * TOKEN > budget


def test_nothing_to_generate_needs_nothing():
    assert peak_kv_bytes(SHAPE, 2, 1, [], 10) == 0


def test_the_plan_needs_no_torch():
    code = "import sys, headway.rollout.kvplan; sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_ledger_counts_with_the_engines_limits():
    for name in ("PREFILL_TOKENS", "SLICE_BYTES", "TEMPORARIES"):
        assert vars(kvcache)[name] == vars(kvplan)[name]
