"""Engines: weights, KV cache, pools, and generation loops."""

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import rows_serving
from headway.errors import InputError
from headway.facts.blocks import LinearAttention
from headway.facts.shapes import ModelShape, table
from headway.facts.workload import Engine, Quant
from headway.plan.engine_sizes import FLASHINFER, VOCAB_PADDING, kernels_of
from headway.plan.engines import (
    EngineMemory,
    engine_memory,
    kv_token_bytes,
    packed_bytes,
    sequence_kv_bytes,
    sequence_state_bytes,
    vllm_defaults,
    weight_bytes,
)
from headway.plan.generation import hf_generation
from headway.units import GIB
from row_shapes import row_shape

QWEN = table()["qwen3-4b"]
H100 = 80 * GIB
shapes = st.sampled_from(sorted(table())).map(lambda name: table()[name])
engines = st.builds(
    Engine,
    st.sampled_from(["vllm", "sglang"]),
    st.floats(0.05, 1.0),
    version=st.sampled_from(["", "0.6.4", "0.11", "v0.15-0.16", "0.19.1", "1.2"]),
    kv_dtype=st.sampled_from(["bf16", "fp8"]),
    quant=st.sampled_from([None, Quant("int4"), Quant("fp8")]),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    max_seqs=st.sampled_from([64, 256, 1024]),
    graphs=st.booleans(),
    releases=st.sampled_from(["nothing", "kv", "weights+kv"]),
)


def held(shape: ModelShape, engine: Engine, *, free: int = H100, longest: int = 8192) -> EngineMemory:
    return engine_memory(shape, engine, device_bytes=H100, free_bytes=free, longest=longest)


@pytest.mark.parametrize("name", sorted(table()))
def test_unpacked_weights_on_one_rank_are_the_parameters(name: str) -> None:
    assert weight_bytes(table()[name], "bf16") == 2 * table()[name].parameters()


@given(shapes, st.sampled_from([None, Quant("int4"), Quant("fp8"), Quant("nf4")]), st.sampled_from([1, 2, 4, 8, 16]))
def test_twice_as_many_ranks_never_hold_more_each(shape: ModelShape, quant: Quant | None, ranks: int) -> None:
    fewer = weight_bytes(shape, "bf16", quant, tensor_parallel=ranks)
    more = weight_bytes(shape, "bf16", quant, tensor_parallel=2 * ranks)
    padding = 2 * 2 * VOCAB_PADDING * shape.hidden
    assert more <= fewer + padding
    assert weight_bytes(shape, "bf16", quant, pipeline_parallel=2 * ranks) <= weight_bytes(
        shape, "bf16", quant, pipeline_parallel=ranks
    )


def test_ranks_together_hold_all_weights() -> None:
    for ranks in (2, 4, 8):
        assert ranks * weight_bytes(QWEN, "bf16", tensor_parallel=ranks) >= 2 * QWEN.parameters()
        assert ranks * weight_bytes(QWEN, "bf16", tensor_parallel=ranks) < 2.01 * QWEN.parameters()


def test_a_tied_head_on_two_pipeline_stages_is_there_twice() -> None:
    untied = replace(QWEN, tied=False)
    assert weight_bytes(QWEN, "bf16", pipeline_parallel=2) == weight_bytes(untied, "bf16", pipeline_parallel=2)
    assert weight_bytes(QWEN, "bf16") < weight_bytes(untied, "bf16")


def test_int4_packs_as_the_tensors_of_an_awq_checkpoint() -> None:
    inputs, outputs = 2560, 9728
    tensors = [  # qweight and qzeros hold eight numbers in an int32, scales are fp16
        (4, (inputs, outputs // 8)), (4, (inputs // 128, outputs // 8)), (2, (inputs // 128, outputs)),
    ]  # fmt: skip
    assert packed_bytes(inputs * outputs, Quant("int4")) == sum(size * prod(shape) for size, shape in tensors)


def test_double_quantisation_saves_what_its_authors_say() -> None:
    weights = 64 * 256 * 1000
    saved = packed_bytes(weights, Quant("nf4")) - packed_bytes(weights, Quant("nf4", double=True))
    assert 8 * saved / weights == pytest.approx(0.373, abs=0.001)  # bits a parameter, QLoRA paper


def test_packing_leaves_embedding_and_head_as_they_are() -> None:
    base = QWEN.parameters() - QWEN.embedding_parameters()
    packed = weight_bytes(QWEN, "bf16", Quant("fp8"))
    assert packed == pytest.approx(base + 2 * QWEN.embedding_parameters(), rel=0.001)
    with_head = weight_bytes(replace(QWEN, tied=False), "bf16", Quant("fp8"), packed_head=True)
    assert with_head == pytest.approx(packed + QWEN.embedding_parameters(), rel=0.001)


@pytest.mark.parametrize(
    ("name", "ranks", "pool_gib", "logged"),
    [  # logged by vLLM and SGLang: sources in tests/data/measured/serving.jsonl, and vLLM issue 21348 for 235B
        ("qwen2.5-7b", 1, 58.53, 1_096_000), ("llama3.1-8b-instruct", 1, 4.60, 37_696),
        ("qwen3-0.6b", 1, 59.40, 556_202), ("qwen3-235b-a22b", 4, 16.46, 367_404),
    ],
)  # fmt: skip
def test_a_pool_holds_as_many_tokens_as_engines_log(name: str, ranks: int, pool_gib: float, logged: int) -> None:
    token = kv_token_bytes(table()[name], "bf16", tensor_parallel=ranks)
    assert pool_gib * GIB / token == pytest.approx(logged, rel=0.001)


def test_kv_heads_divide_over_ranks_but_not_below_one() -> None:
    one = kv_token_bytes(QWEN, "bf16")
    assert [one / kv_token_bytes(QWEN, "bf16", tensor_parallel=ranks) for ranks in (2, 8, 16)] == [2, 8, 8]
    assert kv_token_bytes(QWEN, "fp8") == one / 2


def test_latent_attention_is_on_every_rank_whole() -> None:
    shape = table()["deepseek-v3"]
    assert kv_token_bytes(shape, "bf16") == 61 * (512 + 64) * 2
    assert kv_token_bytes(shape, "bf16", tensor_parallel=8) == kv_token_bytes(shape, "bf16")


def test_sliding_layers_stop_growing_at_their_window() -> None:
    shape = table()["gemma3-27b"]
    window = shape.sliding_window
    full = replace(shape, sliding_layers=0, mixed=())
    assert sequence_kv_bytes(shape, "bf16", window) == sequence_kv_bytes(full, "bf16", window)
    growth = sequence_kv_bytes(shape, "bf16", window + 1000) - sequence_kv_bytes(shape, "bf16", window)
    assert growth * shape.layers == (shape.layers - shape.sliding_layers) * 1000 * kv_token_bytes(full, "bf16")


def test_linear_layers_keep_a_state_and_no_tokens() -> None:
    linear = LinearAttention(layers=27, key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv=4)
    shape = replace(QWEN, linear=linear)
    assert kv_token_bytes(shape, "bf16") * QWEN.layers == kv_token_bytes(QWEN, "bf16") * (QWEN.layers - 27)
    state = sequence_state_bytes(shape)
    assert state == 27 * (32 * 128 * 128 * 4 + 8192 * 4 * 2)
    assert sequence_state_bytes(shape, tensor_parallel=2) == state // 2
    held_with = held(shape, Engine("sglang", 0.5), longest=1)
    assert held_with.full_samples <= held_with.kv_bytes.bytes // state


@settings(max_examples=60)
@given(shapes, engines, st.integers(1, 200_000), st.integers(0, 100_000))
def test_longer_samples_never_raise_the_number_that_fits(
    shape: ModelShape, engine: Engine, longest: int, more: int
) -> None:
    short, long = held(shape, engine, longest=longest), held(shape, engine, longest=longest + more)
    assert long.full_samples <= short.full_samples
    assert (long.kv_bytes, long.kv_tokens) == (short.kv_bytes, short.kv_tokens)


@settings(max_examples=60)
@given(shapes, engines)
def test_bounds_are_on_the_safe_side_of_expected_values(shape: ModelShape, engine: Engine) -> None:
    memory = held(shape, engine)
    for item in (*memory.awake, memory.residue, memory.host_asleep):
        assert 0 <= item.bytes <= item.upper
    assert 0 <= memory.kv_least <= memory.kv_bytes.bytes
    assert memory.full_samples_least <= memory.full_samples
    assert memory.fits or memory.refusal or memory.full_samples == 0


@settings(max_examples=60)
@given(shapes, engines)
def test_what_vllm_holds_without_graphs_and_context_is_its_fraction(shape: ModelShape, engine: Engine) -> None:
    engine = replace(engine, system="vllm", graphs=False)
    memory = held(shape, engine)
    inside = memory.weights.bytes + memory.activations.bytes + memory.buffers.bytes + memory.kv_bytes.bytes
    budget = int(engine.memory_fraction * H100)
    assert inside == budget or (memory.kv_bytes.bytes == 0 and inside >= budget and memory.refusal)


def test_newer_versions_take_their_graphs_out_of_the_pool() -> None:
    old, new = (held(QWEN, Engine("vllm", 0.8, version=version)) for version in ("0.20.2", "0.21"))
    assert old.kv_bytes.bytes - new.kv_bytes.bytes == new.graphs.bytes > 0


def test_vllm_does_not_start_where_less_is_free_than_its_share_of_the_total() -> None:
    memory = held(QWEN, Engine("vllm", 0.9), free=60 * GIB)
    assert not memory.fits
    assert "gpu_memory_utilization = 0.9 asks for 72.00 GiB, but 59.32 GiB are free" in memory.refusal
    assert held(QWEN, Engine("vllm", 0.7), free=60 * GIB).fits


def test_sglang_shares_out_what_is_free_when_it_starts() -> None:
    whole, half = (held(QWEN, Engine("sglang", 0.5), free=free) for free in (H100, H100 // 2))
    assert whole.kv_bytes.bytes - half.kv_bytes.bytes == H100 // 4


def test_an_engine_without_room_for_a_pool_is_an_answer() -> None:
    memory = held(table()["qwen3-32b"], Engine("sglang", 0.4))
    assert (memory.kv_bytes.bytes, memory.kv_tokens, memory.full_samples, memory.fits) == (0, 0, 0, False)
    assert "leaves no KV pool" in memory.refusal


def test_sleep_gives_back_what_is_released() -> None:
    everything, pool, both = (
        held(QWEN, Engine("sglang", 0.5, releases=releases, host_copy=True))
        for releases in ("nothing", "kv", "weights+kv")
    )
    assert everything.residue.bytes - pool.residue.bytes == pool.kv_bytes.bytes + pool.graphs.bytes
    assert pool.residue.bytes - both.residue.bytes == pool.weights.bytes
    assert (pool.host_asleep.bytes, both.host_asleep.bytes) == (0, both.weights.bytes)


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5, 40])
def test_a_fraction_that_is_no_share_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="memory_fraction"):
        held(QWEN, Engine("vllm", fraction))


def test_defaults_follow_device_and_version() -> None:
    assert vllm_defaults(H100, "0.11", device="A100-80GB") == (256, 2048)
    assert vllm_defaults(H100, "0.11", device="H100-80GB") == (1024, 8192)
    assert vllm_defaults(H100, "0.6.4", device="H100-80GB") == (256, 8192)


def test_a_pool_on_a_small_device_with_many_sequences() -> None:
    """vLLM PR 17122: Llama 3.1 8B on an L40S (44.52 GiB) with 0.8 leaves 158,656 tokens at 0.9."""
    total = int(44.52 * GIB)
    seqs, batched = vllm_defaults(total, "0.8.4", device="L40S")
    engine = Engine("vllm", 0.9, version="0.8.4", max_seqs=seqs, max_batched_tokens=batched)
    shape = table()["llama3.1-8b-instruct"]
    memory = engine_memory(shape, engine, device_bytes=total, free_bytes=total, longest=32768)
    assert memory.kv_tokens == pytest.approx(158_656, rel=0.06)
    assert (memory.full_samples, memory.full_samples_least) == (5, 4)


def test_a_cache_grown_by_concatenation_leaves_holes_as_large_as_itself() -> None:
    small, large = (
        hf_generation(QWEN, "bf16", None, batch=batch, prompt=100, new_tokens=1000, style="grown") for batch in (1, 9)
    )
    cache = large.cache.bytes - small.cache.bytes
    assert cache == 8 * 1100 * kv_token_bytes(QWEN, "bf16")
    assert large.allocated - small.allocated == cache
    assert large.reserved - small.reserved == 2 * cache


@given(
    shapes, st.sampled_from([None, Quant("int4"), Quant("nf4"), Quant("fp8"), Quant("int8")]),
    st.sampled_from(["grown", "sized"]), st.integers(1, 64), st.integers(0, 40_000), st.integers(1, 5000),
)  # fmt: skip
def test_generating_more_never_takes_less(
    shape: ModelShape, quant: Quant | None, style: str, batch: int, prompt: int, new: int
) -> None:
    def run(batch: int, prompt: int, new: int) -> tuple[int, int, int, int]:
        made = hf_generation(shape, "bf16", quant, batch=batch, prompt=prompt, new_tokens=new, style=style)
        assert made.allocated <= made.allocated_upper <= made.reserved_upper
        return made.allocated, made.allocated_upper, made.reserved, made.reserved_upper

    base = run(batch, prompt, new)
    for more in (run(batch + 1, prompt, new), run(batch, prompt + 100, new), run(batch, prompt, new + 100)):
        assert all(a <= b for a, b in zip(base, more, strict=True))


def test_nothing_to_generate_is_refused() -> None:
    with pytest.raises(InputError, match="batch of at least 1"):
        hf_generation(QWEN, "bf16", None, batch=0, prompt=1, new_tokens=1, style="grown")


def test_a_pipeline_stage_that_does_not_sample_needs_a_forward_pass_alone() -> None:
    """vLLM's `profile_run` samples on the last stage only, and no stage reduces over workspaces of its own."""
    shape = table()["qwen3-8b"]
    engine = Engine("vllm", 0.9, version="0.19", max_seqs=1024, pipeline_parallel=2)

    def of(**how) -> EngineMemory:
        return engine_memory(
            shape, how.pop("engine", engine), device_bytes=H100, free_bytes=H100, longest=4096, **how
        )

    first, last = of(stage="first"), of(stage="last")
    # the residual stream, its norm, gate and up and their product of 8,192 tokens
    assert first.activations.bytes == 8192 * 2 * (4 * 4096 + 3 * 12288)
    assert last.activations.bytes > 4 * 3 * 1024 * 151936
    assert first.buffers.bytes == of(engine=replace(engine, pipeline_parallel=1)).buffers.bytes
    assert first.kv_bytes.bytes > last.kv_bytes.bytes
    # near misses: one stage samples, and tensor parallel ranks reduce
    one = replace(engine, pipeline_parallel=1)
    assert of(engine=one, stage="first").activations == of(engine=one).activations
    both = of(engine=replace(engine, tensor_parallel=2))
    assert both.buffers.bytes == of(engine=replace(one, tensor_parallel=2)).buffers.bytes > 2 * GIB


def _gpt_oss(name: str, hidden: int, inner: int) -> int:
    """A second count, from the tensors that vLLM makes: mxfp4 experts in padded widths, all else in bf16."""
    shape = table()[name]
    weights = shape.layers * shape.experts * 3 * hidden * inner
    plain = shape.parameters() - shape.layers * shape.experts * 3 * 2880 * 2880
    biases = shape.layers * shape.experts * (2 * (inner - 2880) + hidden - 2880)
    return weights // 2 + weights // 32 + 2 * (plain + biases)


@pytest.mark.parametrize(
    ("name", "device", "hidden", "inner"),
    [
        ("gpt-oss-20b", "H100-80GB", 2880, 2880), ("gpt-oss-20b", "RTX4090-24GB", 3072, 2944),
        ("gpt-oss-120b", "8xh200", 2880, 2880), ("gpt-oss-120b", "B200", 3072, 3072),
        ("gpt-oss-120b", "", 3072, 2944),
    ],
)  # fmt: skip
def test_gpt_oss_packs_its_experts_alone(name: str, device: str, hidden: int, inner: int) -> None:
    shape = table()[name]
    size = weight_bytes(shape, "bf16", Quant("mxfp4"), padding=kernels_of(device))
    assert size == pytest.approx(_gpt_oss(name, hidden, inner), rel=1e-6)
    # all projections in four bits, as other models have them, is far less
    assert size > 1.04 * weight_bytes(shape, "bf16", Quant("int4"))


def test_gpt_oss_20b_is_as_large_as_vllm_logged_it() -> None:
    """vLLM issue 22331: "Model loading took 12.8848 GiB" with unpadded widths."""
    size = weight_bytes(table()["gpt-oss-20b"], "bf16", Quant("mxfp4"))
    assert size == pytest.approx(12.8848 * GIB, rel=0.01)
    engine = Engine("vllm", 0.9, quant=Quant("mxfp4"))
    shape = table()["gpt-oss-20b"]
    item = engine_memory(shape, engine, device_bytes=H100, free_bytes=H100, longest=4096, device="h100-80").weights
    # other kernels pad more, and nobody said which run
    assert item.upper >= weight_bytes(shape, "bf16", Quant("mxfp4"), padding=FLASHINFER)


def test_a_row_of_gpt_oss_in_four_bits_is_mxfp4() -> None:
    model = {
        "layers": 24, "hidden": 2880, "expert_ffn": 2880, "heads": 64, "kv_heads": 8, "head_dim": 64, "vocab": 201088,
        "experts": 32, "experts_per_token": 4, "ffn": 2880,
    }  # fmt: skip
    row = {
        "model": model, "engine": {"system": "vllm", "version": "0.19", "dtype": "int4"},
        "machine": {"device": "H100-80GB", "device_bytes": H100}, "measured": {"quantity": "weights", "bytes": 1},
    }  # fmt: skip
    assert rows_serving.predict(row).bytes == pytest.approx(12.82 * GIB, rel=0.002)
    other = {**row, "model": {**model, "experts": 16}}
    assert rows_serving.predict(other).bytes == weight_bytes(row_shape(other["model"]), "bf16", Quant("int4"))
