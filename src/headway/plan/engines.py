"""What an inference engine with processes of its own holds on each of its devices: vLLM, SGLang.

An engine takes what its fraction allows: weights, and a KV pool as large as the rest permits. The uncertain part is
what a version needs beside them, so constants are keyed by version.
"""

from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.shapes import ModelShape
from headway.facts.workload import DTYPE_BYTES, Engine
from headway.plan.engine_sizes import (
    FLASHINFER,
    kernels_of,
    kv_token_bytes,
    packed_bytes,
    sequence_kv_bytes,
    sequence_state_bytes,
    weight_bytes,
)
from headway.plan.item import Item
from headway.units import GIB, MIB, format_bytes

__all__ = [
    "EngineMemory", "engine_memory", "kv_token_bytes", "packed_bytes", "sequence_kv_bytes", "sequence_state_bytes",
    "vllm_defaults", "weight_bytes",
]  # fmt: skip


Stage = Literal["first", "last"]


class Constants(NamedTuple):
    """What a version of vLLM needs, for versions from `since` on.

    `sampler`: fp32 tensors of [max_seqs, vocabulary] at the peak of its dry run. `non_torch` bytes on one rank and
    `non_torch_parallel` with several tensor parallel ones. `graphs_counted`: its CUDA graphs come out of the
    fraction.
    """

    since: tuple[int, int]
    sampler: float
    non_torch: int
    non_torch_parallel: int
    graphs_counted: bool
    source: str


VLLM = (
    Constants((0, 0), 9.6, 1833 * MIB, 3666 * MIB, False, "vLLM 0.6.4 logs, 2 runs"),
    Constants((0, 7), 9.6, 133 * MIB, 553 * MIB, False, "vLLM 0.11 and 0.15 logs, 4 runs"),
    Constants((0, 17), 3.7, 250 * MIB, 2150 * MIB, False, "vLLM 0.17 to 0.19 logs, 5 runs"),
    Constants((0, 21), 3.7, 250 * MIB, 2150 * MIB, True, "as 0.17; graphs are estimated first since 0.21"),
)
"""Fitted on memory profiles that vLLM logs: weights, peak activation, non-torch memory and pool sum to the budget.
9.6 fp32 tensors: logits in half and full precision, a sort's values and 8-byte indices with their copies, softmax;
3.7: no sort."""

GRAPHS, GRAPHS_UPPER = GIB, 5 * GIB // 2
"""CUDA graphs: 0.5 to 1.9 GiB were logged by vLLM, 1.0 by SGLang for 36 batch sizes."""
CONTEXT = 700 * MIB
"""CUDA context with modules: 0.3 to 0.7 GiB were measured on several devices."""
COMMUNICATOR = {1: 0, 2: 544 * MIB}
"""NCCL buffers: 544 MiB for two ranks and 688 MiB for more were measured on NVLink."""
COMMUNICATOR_MANY = 688 * MIB
SGLANG_START = 1900 * MIB
"""What SGLang's process has taken before it measures free memory: 1.87 GiB and 1.8 to 2.0 GiB in two logs."""
SGLANG_BUFFERS, SGLANG_BUFFERS_UPPER = 3 * GIB // 2, 4 * GIB
"""What SGLang takes between its weights and sizing the pool (attention workspaces): nothing in a log of 2025, 3.5 GiB
in one of 2026."""
RESIDUE = {"vllm": (700 * MIB, 3 * GIB // 2), "sglang": (2 * GIB, 16 * GIB // 5)}
"""What a sleeping engine leaves on the device: 0.7 GiB (vLLM) to 3.2 GiB (SGLang) were reported."""


class EngineMemory(Struct, frozen=True):
    """One rank of an engine, awake and asleep, in bytes.

    `kv_bytes` is the KV pool (0 where nothing is left), `kv_least` the pool if all else takes its upper bound.
    `full_samples` of the longest length fit in the expected pool, `full_samples_least` in the least. `refusal` says
    why the engine does not start, in words; "" if it does. `buffers` is what the pool's sizing counts beside tensors
    (vLLM's non-torch memory, SGLang's attention workspaces), `context` what the process had before. `residue` is all
    that stays on the device asleep; `host_asleep` waits in host memory.

    >>> from headway.facts.shapes import table
    >>> memory = engine_memory(
    ...     table()["qwen3-4b"], Engine("sglang", 0.5), device_bytes=80 * GIB, free_bytes=78 * GIB, longest=4096
    ... )
    >>> memory.kv_tokens, memory.full_samples
    (211752, 51)
    """

    weights: Item
    kv_bytes: Item
    kv_least: int
    kv_tokens: int
    full_samples: int
    full_samples_least: int
    graphs: Item
    activations: Item
    buffers: Item
    context: Item
    residue: Item
    host_asleep: Item
    refusal: str = ""

    @property
    def awake(self) -> tuple[Item, ...]:
        """The items that an engine holds while it generates."""
        return (self.weights, self.kv_bytes, self.graphs, self.activations, self.buffers, self.context)

    @property
    def fits(self) -> bool:
        """Whether the engine starts and its pool holds at least one sample of full length."""
        return not self.refusal and self.full_samples > 0


def vllm_defaults(device_bytes: int, version: str = "", *, device: str = "") -> tuple[int, int]:
    """(max_seqs, max_batched_tokens) that `vllm serve` takes where nothing is set.

    From 0.9 on, devices of 70 GiB and more other than the A100 run 1,024 sequences and 8,192 tokens, others 256 and
    2,048; 0.8 ran 1,024 sequences everywhere, versions before it 256 without chunks. Source: `EngineArgs` of vLLM.

    >>> vllm_defaults(80 * GIB, "0.19", device="H100"), vllm_defaults(24 * GIB)
    ((1024, 8192), (256, 2048))
    """
    number = _version(version)
    if number and number < (0, 8):
        return 256, 8192
    if number and number < (0, 9):
        return 1024, 2048
    large = device_bytes >= 70 * GIB and "a100" not in device.lower()
    return (1024, 8192) if large else (256, 2048)


def engine_memory(
    shape: ModelShape,
    engine: Engine,
    *,
    device_bytes: int,
    free_bytes: int,
    longest: int,
    device: str = "",
    stage: Stage = "last",
) -> EngineMemory:
    """What one rank of the engine holds on a device of `device_bytes`, `free_bytes` of them free before it starts.

    `longest` is the longest sample in tokens, `device` its name or the machine's. `stage`: of pipeline stages the
    last has the most, because it alone makes logits and samples. SGLang: weights and pool take `memory_fraction` of
    what its context leaves free (`model_runner`: free after loading less (1 - fraction) x free before). vLLM:
    everything but CUDA graphs takes `gpu_memory_utilization` of the total, and it does not start where its context
    leaves less free. A pool of nothing is an answer. InputError where the fraction is not above 0 and at most 1.
    """
    if not 0 < engine.memory_fraction <= 1:
        raise InputError(
            f"engine.memory_fraction = {engine.memory_fraction}: it is a share of the device; set one above 0 and at "
            "most 1, such as 0.6"
        )
    weights = _weights(shape, engine, device)
    if engine.shared:
        engine = as_unsloth_runs_it(
            shape, engine, int(engine.memory_fraction * device_bytes) - weights.bytes, longest
        )
    activations = _activations(shape, engine, samples=stage == "last" or engine.pipeline_parallel == 1)
    graphs = _graphs(engine) if not engine.shared else _graphs_of_unsloth(shape, engine)
    buffers, context = _buffers(engine), _context(engine)
    free = max(0, free_bytes - context.bytes)
    if engine.system == "vllm":
        budget = int(engine.memory_fraction * device_bytes)
        share = f"{engine.memory_fraction:g} x {format_bytes(device_bytes)}"
        inside = [weights, activations, buffers, *([graphs] if _constants(engine).graphs_counted else [])]
    else:
        budget = int(engine.memory_fraction * free)
        share = f"{engine.memory_fraction:g} x {format_bytes(free)} free"
        inside = [weights, buffers]
    pool = budget - sum(item.bytes for item in inside)
    least = max(0, budget - sum(item.upper for item in inside))
    most = budget - weights.bytes
    most -= sum(_lowest(engine, item) for item in inside[1:]) if engine.system == "vllm" else 0
    token = kv_token_bytes(shape, engine.kv_dtype, tensor_parallel=engine.tensor_parallel)
    stages = engine.pipeline_parallel
    token = -(-token // stages)
    kv = Item(
        "KV pool", max(0, pool), max(0, most),
        f"{share} - " + " - ".join(f"{item.item} {format_bytes(item.bytes)}" for item in inside),
        f"{engine.system}'s sizing of its pool",
    )  # fmt: skip
    sample = -(-sequence_kv_bytes(shape, engine.kv_dtype, longest, tensor_parallel=engine.tensor_parallel) // stages)
    sample += sequence_state_bytes(shape, engine.dtype, tensor_parallel=engine.tensor_parallel) // stages
    return EngineMemory(
        weights=weights, kv_bytes=kv, kv_least=least,
        kv_tokens=kv.bytes // token if token else 0,
        full_samples=kv.bytes // sample if sample else engine.max_seqs,
        full_samples_least=least // sample if sample else engine.max_seqs,
        graphs=graphs, activations=activations, buffers=buffers, context=context,
        residue=_residue(engine, weights, kv, graphs), host_asleep=_host_asleep(engine, weights),
        refusal=_refusal(engine, budget, free, pool),
    )  # fmt: skip


def _refusal(engine: Engine, budget: int, free: int, pool: int) -> str:
    if engine.system == "vllm" and free < budget:
        return (
            f"vLLM does not start: gpu_memory_utilization = {engine.memory_fraction:g} asks for "
            f"{format_bytes(budget)}, but {format_bytes(free)} are free"
        )
    if pool <= 0:
        return f"memory_fraction = {engine.memory_fraction:g} leaves no KV pool beside the weights; raise it"
    return ""


def _weights(shape: ModelShape, engine: Engine, device: str) -> Item:

    def size_of(padding: tuple[int, int]) -> int:
        return weight_bytes(
            shape, engine.dtype, engine.quant, tensor_parallel=engine.tensor_parallel,
            pipeline_parallel=engine.pipeline_parallel, padding=padding,
        )  # fmt: skip

    size = size_of(kernels_of(device))
    kind = engine.quant.kind if engine.quant else engine.dtype
    formula = f"{shape.parameters():,} parameters, {kind}, over {engine.tensor_parallel * engine.pipeline_parallel}"
    upper = size + size * 3 // 100 + 64 * MIB
    if kind == "mxfp4":
        # other kernels pad more
        upper = max(upper, size_of(FLASHINFER))
    return Item("weights", size, upper, formula, "shape; 9 logged sizes within 2 %")


def _activations(shape: ModelShape, engine: Engine, *, samples: bool = True) -> Item:
    """The peak of a forward of `max_batched_tokens` tokens, or of sampling for `max_seqs` sequences after it.

    A forward holds the residual stream, its norm, and gate, up and product of an MLP (or the routed copies of each
    token); sampling holds fp32 tensors of [sequences, vocabulary] beside the hidden states. A stage that does not
    sample hands two tensors of hidden states on instead (vLLM's `profile_run`).
    """
    size, tokens = DTYPE_BYTES[engine.dtype], engine.max_batched_tokens
    matrices = 3 if shape.gated else 2
    wide = shape.ffn if not shape.experts or shape.dense_layers else 0
    inner = matrices * wide // engine.tensor_parallel
    routed = shape.experts_per_token * (matrices * shape.expert_ffn // engine.tensor_parallel + shape.hidden)
    routed += matrices * shape.shared_ffn // engine.tensor_parallel
    forward = tokens * size * (4 * shape.hidden + max(inner, routed))
    factor = _constants(engine).sampler if engine.system == "vllm" else 3.0
    sampler = int(factor * engine.max_seqs * shape.vocab * 4) + tokens * shape.hidden * size * 5 // 4
    sampler = sampler if samples else 0
    peak = max(forward, sampler)
    formula = f"forward of {tokens:,} tokens {format_bytes(forward)}"
    if samples:
        formula = f"max({formula}, {factor:g} x {engine.max_seqs:,} x {shape.vocab:,} x 4 B {format_bytes(sampler)})"
    source = _constants(engine).source if engine.system == "vllm" else "shape"
    upper = peak * 11 // 10 if _version(engine.version) else max(peak * 2, 0)
    return Item("activations", peak, upper, formula, source)


def _lowest(engine: Engine, item: Item) -> int:
    """The least that an item takes: what versions differ by if none is named, and a tenth otherwise."""
    return item.bytes * 9 // 10 if _version(engine.version) else item.bytes * 3 // 10


def _graphs(engine: Engine) -> Item:
    if not engine.graphs:
        return Item.exact("CUDA graphs", 0, "not captured", "")
    return Item("CUDA graphs", GRAPHS, GRAPHS_UPPER, "constant", "0.5 to 1.9 GiB logged")


UNSLOTH = (
    (2, 2048, 8), (4, 2048, 16), (8, 4096, 32), (12, 4096, 48), (16, 6144, 64), (24, 6144, 80), (40, 8192, 96),
    (48, 8192, 112), (80, 8192, 128),
)  # fmt: skip
"""GiB that Unsloth expects to be left for the KV pool, at most -> tokens and sequences at once that it gives vLLM
(unsloth-zoo 2026.10, `load_vllm`)."""
UNSLOTH_GRAPHS = 172
"""CUDA graphs that it expects vLLM to capture, each of 4 bytes times width times layers."""


def as_unsloth_runs_it(shape: ModelShape, engine: Engine, left: int, longest: int) -> Engine:
    """The engine with the tokens and sequences that Unsloth sets by the bytes `left` beside the weights; what a
    script sets itself stays."""
    if engine.max_seqs != Engine(engine.system, engine.memory_fraction).max_seqs:
        return engine
    room = left - _captured(shape)
    tokens, seqs = next(((tokens, seqs) for most, tokens, seqs in UNSLOTH if room <= most * GIB), (8192, 256))
    length = max(longest, engine.max_length)
    return replace(engine, max_seqs=seqs, max_batched_tokens=min(max(tokens, length), seqs * length))


def _captured(shape: ModelShape) -> int:
    return min(GIB, max(GIB * 15 // 100, UNSLOTH_GRAPHS * 4 * shape.hidden * shape.layers))


def _graphs_of_unsloth(shape: ModelShape, engine: Engine) -> Item:
    size = _captured(shape) if engine.graphs else 0
    text = f"{UNSLOTH_GRAPHS} graphs x 4 B x width x layers, 0.15 to 1 GiB"
    return Item("CUDA graphs", size, max(size, GRAPHS) if size else 0, text, "Unsloth's own estimate")


def _buffers(engine: Engine) -> Item:
    """What grows outside of tensors between the engine's start and the sizing of its pool.

    vLLM: ranks of one layer reduce through workspaces of their own. Stages are profiled each alone, and their
    communicators are there before the first look at the memory.
    """
    if engine.system == "sglang":
        return Item("buffers", SGLANG_BUFFERS, SGLANG_BUFFERS_UPPER, "constant", "two logs")
    known = _constants(engine)
    size = known.non_torch_parallel if engine.tensor_parallel > 1 else known.non_torch
    most = size if engine.pipeline_parallel == 1 else known.non_torch_parallel
    return Item("non-torch", size, max(2 * size, most), "constant of the version", known.source)


def _context(engine: Engine) -> Item:
    """What the process takes of the device before it measures free memory, NCCL's buffers in SGLang included."""
    if engine.shared:
        return Item.exact("context", 0, "the trainer's own process", "")
    ranks = engine.tensor_parallel * engine.pipeline_parallel
    if engine.system == "vllm":
        return Item("context", CONTEXT, 2 * CONTEXT, "CUDA context and modules", "0.3 to 0.7 GiB measured")
    size = SGLANG_START + COMMUNICATOR.get(ranks, COMMUNICATOR_MANY)
    return Item("context", size, size + GIB, "context, libraries, NCCL", "two logs")


def _residue(engine: Engine, weights: Item, kv: Item, graphs: Item) -> Item:
    """What an engine keeps on the device while the trainer works: "asleep", or "idle" where it gives nothing back."""
    size, upper = RESIDUE[engine.system]
    if engine.shared:
        size, upper = 0, upper - size
    words = [f"residue {format_bytes(size)}"]
    if engine.releases in ("nothing", "kv") and not engine.shared:
        size, upper = size + weights.bytes, upper + weights.upper
        words.append("weights")
    if engine.releases == "nothing":
        size, upper = size + kv.bytes + graphs.bytes, upper + kv.upper + graphs.upper
        words.append("KV pool and graphs")
    name = "idle" if engine.releases == "nothing" else "asleep"
    return Item(name, size, upper, " + ".join(words), "residue: 0.7 GiB (vLLM) to 3.2 GiB (SGLang) reported")


def _host_asleep(engine: Engine, weights: Item) -> Item:
    if not engine.host_copy or engine.releases != "weights+kv":
        return Item.exact("weights in host memory", 0, "no copy", "")
    return Item("weights in host memory", weights.bytes, weights.upper, "one pinned copy", "sleep level 1")


def _constants(engine: Engine) -> Constants:
    """The version's row; where no version is named, the newest one that is measured."""
    number = _version(engine.version)
    if not number:
        return VLLM[2]
    return next(row for row in reversed(VLLM) if row.since <= number)


def _version(text: str) -> tuple[int, int] | None:
    """The first two numbers of a version: (0, 15) of "v0.15-0.16"; None where there are none.

    >>> _version("v0.15-0.16"), _version("")
    ((0, 15), None)
    """
    parts = text.strip().lstrip("v").split("-")[0].split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None
