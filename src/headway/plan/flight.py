"""How many samples generate at once, and an engine whose KV pool does not hold even one."""

from headway.facts.workload import Engine, Workload
from headway.plan import kvcache
from headway.plan.engine_sizes import sequence_kv_bytes, sequence_state_bytes
from headway.plan.ledger import Ledger, Phase
from headway.units import format_bytes

EMBEDDED, POOL = "KV cache", "KV pool"
"""The ledger's items: the cache of headway's embedded engine, and the pool of an engine in processes of its own."""


def in_flight(workload: Workload, ledger: Ledger) -> int | None:
    """Samples of full length that generate at once, on all engines of the run; None where none is planned.

    By what the ledger's cache holds: a sample takes `sequence_kv_bytes` of every rank of its engine.
    """
    engine, shape, longest = workload.engine, workload.model, workload.rollout.longest
    answers = workload.rollout.prompts * workload.rollout.samples
    if engine is not None:
        held = _held(ledger, POOL)
        if held is None:
            return None
        one = sequence_kv_bytes(shape, engine.kv_dtype, longest, tensor_parallel=engine.tensor_parallel)
        one += sequence_state_bytes(shape, engine.dtype, tensor_parallel=engine.tensor_parallel)
        each = held * engine.pipeline_parallel // one if one else engine.max_seqs
        return min(answers, answering(workload, engine) * min(each, engine.max_seqs))
    held = _held(ledger, EMBEDDED)
    if held is None or workload.trainer.system != "headway":
        return None
    return held // (kvcache.token_bytes(workload) * longest)


def answering(workload: Workload, engine: Engine) -> int:
    """How many engines write answers: those that only read prompts hold a sample's cache for a short time."""
    devices = workload.layout.ranks if engine.colocated else engine.devices
    return max(1, devices // (engine.tensor_parallel * engine.pipeline_parallel) - engine.prefill)


def refusals(workload: Workload, ledger: Ledger) -> tuple[str, ...]:
    """Why a run does not work though its memory fits: an engine that has no room for a single sample, in words."""
    if workload.engine is None or in_flight(workload, ledger) != 0:
        return ()
    return (
        f"engine.memory_fraction = {workload.engine.memory_fraction:g}: leaves a KV pool of "
        f"{format_bytes(_held(ledger, POOL) or 0)}, which holds no sample of {workload.rollout.longest:,} tokens",
    )


def _held(ledger: Ledger, item: str) -> int | None:
    """Bytes of an item while samples generate; None where the ledger has none."""
    sizes = [line.bytes for line in ledger.lines if line.phase == Phase.ROLLOUT and line.item == item]
    return max(sizes) if sizes else None
