"""Megatron-LM's own functional tests against the planner: bytes at the end of a step, and the peak, of the last rank.

    python benchmarks/megatron_golden.py FILE [--json] [--rows]

FILE is a CSV with a test's launch arguments, `alloc` (mem-allocated-bytes at the end of a step) and `max`
(mem-max-allocated-bytes). A row is right where the end of the step is within max(200 MiB, 5 %) and the peak within
max(250 MiB, 10 %). Rows of other models than GPT and its mixtures (BERT, T5, Mamba hybrids, vision), of Megatron's
own FSDP, with captured graphs, or without a world size are not covered, with the reason.

--json prints {"rows", "covered", "coverage", "end_within", "peak_within", "end_median", "peak_median", "reasons"}.
"""

import argparse
import csv
import json
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.errors import InputError
from headway.facts.blocks import Mla
from headway.facts.shapes import ModelShape
from headway.facts.workload import Layout, Megatron, Optimizer, Recompute, Rollout, Trainer, Workload
from headway.plan.megatron.run import Run
from headway.units import MIB
from prediction import NotCovered
from rows_megatron import OLDER_CORE, at_end, peak

MODELS = ("gpt", "moe", "mixtral")
END, PEAK = (200 * MIB, 0.05), (250 * MIB, 0.10)


@dataclass(frozen=True)
class Scored:
    """One row: measured and predicted bytes at the end of a step and at the peak; a reason where it is not covered.

    >>> Scored("a", "h100", 100, 100, 90, 100, "").end_within
    True
    """

    case: str
    env: str
    end: int
    peak: int
    end_predicted: int
    peak_predicted: int
    reason: str

    @property
    def end_within(self) -> bool:
        """Whether the end of a step is as close as it has to be."""
        return _within(self.end, self.end_predicted, *END)

    @property
    def peak_within(self) -> bool:
        """Whether the peak is."""
        return _within(self.peak, self.peak_predicted, *PEAK)


def _within(measured: int, predicted: int, size: int, share: float) -> bool:
    return abs(predicted - measured) <= max(size, share * measured)


def score(row: Mapping[str, str]) -> Scored:
    """One row of the file."""
    names = row["case"], row["env"]
    measured = round(float(row["alloc"] or 0)), round(float(row["max"] or 0))
    try:
        if not all(measured):
            raise NotCovered("no measurement")
        work = workload(row)
        last = Run.of(work).stages()[-1:]
        return Scored(*names, *measured, at_end(work, last).bytes, peak(work, last).bytes, "")
    except (NotCovered, InputError) as reason:
        return Scored(*names, *measured, 0, 0, str(reason))


def workload(row: Mapping[str, str]) -> Workload:
    """The run of a row; NotCovered where it is of another kind, or where the row does not say enough."""
    if row["model"] not in MODELS:
        raise NotCovered(f"model {row['model']}")
    if row["fsdp"] or row["fsdp_sharding"]:
        raise NotCovered("Megatron's FSDP")
    if row["cuda_graph"]:
        raise NotCovered("captured graphs keep buffers of their own")
    if row["pp_layout"] or row["hybrid_pattern"]:
        raise NotCovered("a layout of layers by letters")
    if not row["world_size"]:
        raise NotCovered("world size is not known")
    layout, shape = _layout(row), _shape(row)
    data = layout.ranks // (layout.tensor * layout.context * layout.pipeline)
    samples, length, batch = number(row, "mbs", 1), number(row, "seq"), number(row, "gbs")
    trainer = Trainer(
        param_dtype="fp16" if flag(row, "fp16") else "bf16", lora=None, reference="none", cap=samples * length,
        checkpointing=False, attention=_attention(row),
        logprob_chunk=0, entropy=False, updates=1, system="megatron", rows=samples,
        grad_dtype="fp16" if flag(row, "fp16") else "fp32",
        optimizer=Optimizer(
            kind="muon" if "muon" in row["opt"] else "adamw", step="fused",
            distributed=flag(row, "distributed_optimizer"),
        ),
        loss="logits",
        recompute=Recompute(row["rec"] or "none", (), row["rec_m"] or "uniform", number(row, "rec_n", 0)),
        megatron=_megatron(row),
    )  # fmt: skip
    samples_a_step = max(batch, samples * data)
    return Workload(
        shape, trainer, Rollout(samples_a_step, 1, 0, length, 0, 0, 1), "cuda", 1, 0, "exact", 0, "json", 0, 3,
        save=False, tensorboard=False, layout=layout,
    )  # fmt: skip


def _attention(row: Mapping[str, str]) -> Literal["eager", "flash", "sdpa"]:
    """What runs it: Transformer Engine takes cuDNN's attention where that is deterministic, as these tests ask for:
    on Hopper; on Ampere and Blackwell it takes FlashAttention."""
    if row["attn"] == "unfused" or row["impl"] == "local":
        return "eager"
    return "sdpa" if "h100" in row["env"] and row["attn"] != "flash" else "flash"


def _megatron(row: Mapping[str, str]) -> Megatron:
    native = flag(row, "cef") or row["cross_entropy_impl"] == "native"
    return Megatron(
        implementation="local" if row["impl"] == "local" else "te",
        te_version="2.0" if row["env"].startswith("lts") else "", core_version=OLDER_CORE,
        fused_gradients=flag(row, "grad_accum_fusion"), cross_entropy="native" if native else "unfused",
        hidden_dropout=float(row["hidden_dropout"] or 0) > 0,
        attention_dropout=float(row["attention_dropout"] or 0) > 0,
        optimizer_instances=number(row, "optimizer_instances", 1),
        count_embedding=flag(row, "account_embedding"), count_loss=flag(row, "account_loss"),
    )  # fmt: skip


def _layout(row: Mapping[str, str]) -> Layout:
    tensor, pipeline, context = (number(row, key, 1) for key in ("tp", "pp", "cp"))
    parts = number(row, "vpp", 0)
    if parts == 1:
        # one part would be no interleaving: the value is that of --num-layers-per-virtual-pipeline-stage
        parts = number(row, "layers") // pipeline
    return Layout(
        devices=number(row, "world_size"), tensor=tensor, pipeline=pipeline, context=context,
        sequence_parallel=flag(row, "sp"), expert_parallel=number(row, "ep", 1),
        expert_tensor=number(row, "etp", 0) or None,
        virtual_pipeline=max(1, parts) if pipeline > 1 else 1,
        first_stage_layers=number(row, "pp_first_layers", 0) or None,
        last_stage_layers=number(row, "pp_last_layers", 0) or None,
    )  # fmt: skip


def _shape(row: Mapping[str, str]) -> ModelShape:
    hidden, heads, gated = number(row, "hidden"), number(row, "heads"), flag(row, "gated")
    bias, layers = flag(row, "bias"), number(row, "layers")
    ffn = number(row, "ffn", 0) or (int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    learned = row["position_embedding"] == "learned_absolute"
    rms = row["norm"] == "RMSNorm"
    experts = number(row, "experts", 0)
    return ModelShape(
        name=row["case"], family="", layers=layers, hidden=hidden, ffn=ffn, heads=heads,
        kv_heads=number(row, "kv", 0) or heads, head_dim=number(row, "head_dim", 0) or hidden // heads,
        vocab=number(row, "vocab"), tied=flag(row, "tied"), qkv_bias=bias, output_bias=bias, mlp_bias=bias,
        gated=gated, norm="rms" if rms else "layer", norm_bias=not rms, experts=experts,
        experts_per_token=number(row, "topk", 0), expert_ffn=(number(row, "moeffn", 0) or ffn) if experts else 0,
        shared_ffn=number(row, "shared_expert_ffn", 0), dense_layers=_dense(row["moe_layer_freq"]),
        mla=_mla(row) if flag(row, "mla") else None, mtp_layers=number(row, "mtp_layers", 0),
        learned_positions=number(row, "max_positions", 0) if learned else 0,
    )  # fmt: skip


def _dense(frequency: str) -> int:
    """Leading dense layers of `([0]*1+[1]*15)`; 0 where every layer has experts."""
    if not frequency:
        return 0
    head, star, rest = frequency.replace("(", "").replace("[0]", "").partition("*")
    count = rest.partition("+")[0]
    if head or not star or not count.isdigit():
        raise NotCovered(f"moe_layer_freq {frequency}")
    return int(count)


def _mla(row: Mapping[str, str]) -> Mla:
    return Mla(*(number(row, key, 0) for key in ("q_lora", "kv_lora", "qk_nope", "qk_rope", "v_dim")))


def number(row: Mapping[str, str], key: str, default: int | None = None) -> int:
    """A whole number; NotCovered where it is absent and there is no default."""
    text = row[key]
    if not text:
        if default is None:
            raise NotCovered(f"{key} is not known")
        return default
    return int(float(text))


def flag(row: Mapping[str, str], key: str) -> bool:
    """Whether a column says True."""
    return row[key] == "True"


def result(rows: Sequence[Scored]) -> dict[str, object]:
    """What --json prints."""
    covered = [row for row in rows if not row.reason]
    return {
        "rows": len(rows), "covered": len(covered), "coverage": len(covered) / len(rows) if rows else None,
        "end_within": _share([row.end_within for row in covered]),
        "peak_within": _share([row.peak_within for row in covered]),
        "end_median": _median([abs(row.end_predicted / row.end - 1) for row in covered]),
        "peak_median": _median([abs(row.peak_predicted / row.peak - 1) for row in covered]),
        "reasons": dict(Counter(row.reason for row in rows if row.reason)),
    }  # fmt: skip


def _share(found: Sequence[bool]) -> float | None:
    return sum(found) / len(found) if found else None


def _median(found: Sequence[float]) -> float | None:
    return statistics.median(found) if found else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, predict, print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE", help="the tests' values and arguments")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--rows", action="store_true", help="print every covered row")
    chosen = parser.parse_args(arguments)
    try:
        rows = [score(row) for row in csv.DictReader(chosen.file.read_text().splitlines())]
    except OSError as problem:
        print(f"{chosen.file}: cannot be read ({problem.strerror})", file=sys.stderr)
        return 2
    if chosen.rows:
        for row in rows:
            if not row.reason:
                show(row)
    figures = result(rows)
    print(json.dumps(figures, indent=1) if chosen.json else _words(figures))
    return 0


def show(row: Scored) -> None:
    """One row on one line, in MiB."""
    values = [value / MIB for value in (row.end, row.end_predicted, row.peak, row.peak_predicted)]
    marks = f"{'' if row.end_within else 'END '}{'' if row.peak_within else 'PEAK'}"
    print(
        f"{row.case[:90]:90} {row.env[:22]:22} end {values[0]:8.0f} {values[1] - values[0]:+7.0f}"
        f"  peak {values[2]:8.0f} {values[3] - values[2]:+7.0f} {marks}"
    )


def _words(figures: Mapping[str, object]) -> str:
    lines = [
        f"{key}: {value:.3f}" if isinstance(value, float) else f"{key}: {value}" for key, value in figures.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
