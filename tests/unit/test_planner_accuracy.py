"""The accuracy command: what it predicts of public rows, how it counts, and what it does with rows that are wrong."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner_accuracy
import rule_of_thumb
from planner_accuracy import Scored, main, percentile, score, summary

DATA = Path(__file__).parents[1] / "data" / "measured"
SERVING, LOSSES = DATA / "serving.jsonl", DATA / "losses.jsonl"
ROWS = [json.loads(line) for path in (SERVING, LOSSES) for line in path.read_text().splitlines()]

MODEL = {"layers": 36, "hidden": 4096, "ffn": 12288, "heads": 32, "kv_heads": 8, "head_dim": 128, "vocab": 151936}
GENERATION: dict[str, Any] = {
    "id": "a", "model": MODEL, "engine": {"system": "hf", "dtype": "bf16", "prompt_len": 10, "new_tokens": 100},
    "machine": {"device_bytes": 10**11}, "measured": {"bytes": 16_500_000_000, "quantity": "allocated"},
}  # fmt: skip

TRAINED: dict[str, Any] = {
    "id": "b", "model": MODEL, "layout": {"gpus": 2, "dp": 2, "zero_stage": 3},
    "trainer": {
        "system": "hf", "mode": "lora", "param_dtype": "bf16", "optimizer": {"kind": "adamw", "state_dtype": "fp32"},
        "lora": {"rank": 16, "targets": "all-linear", "dtype": "fp32"}, "recompute": {"granularity": "full"},
        "attention": "flash", "loss": "torch", "micro_batch": 2, "seq_len": 2048,
    },
    "measured": {"bytes": 24_000_000_000, "quantity": "reserved"},
}  # fmt: skip


def changed(**sections: Any) -> dict[str, Any]:
    """The generation row with other sections; a dict is merged into the old one."""
    return {
        **GENERATION,
        **{
            key: {**GENERATION.get(key, {}), **value} if isinstance(value, Mapping) else value
            for key, value in sections.items()
        },
    }


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_public_rows_are_predicted_as_well_as_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = run(capsys, SERVING, LOSSES)["kinds"]
    own = {kind: figures for kind, figures in kinds.items() if " also " not in kind}
    assert {kind.split()[0] for kind in own} == {"hf", "vllm", "sglang", "loss"}
    for kind, figures in own.items():
        assert figures["coverage"] == 1.0, kind
        assert figures["upper_holds"] == 1.0, kind
        if figures["median_error"] is not None:
            assert figures["median_error"] <= 0.06, kind
            assert figures["p90_error"] <= 0.18, kind
            assert figures["upper_ratio"] <= 1.2, kind
    assert kinds["vllm also kv_tokens"]["worst_error"] <= 0.01
    assert kinds["sglang also kv_tokens"]["worst_error"] <= 0.01


def test_what_json_prints(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run(capsys, SERVING)
    keys = {"rows", "coverage", "median_error", "p90_error", "worst_error", "upper_holds", "upper_ratio"}
    assert set(printed) == {"total", "kinds", "rows"}
    assert set(printed["total"]) == keys
    assert all(set(figures) == keys for figures in printed["kinds"].values())
    assert printed["total"]["rows"] == len(SERVING.read_text().splitlines())
    assert {row["id"] for row in printed["rows"]} == {
        json.loads(line)["id"] for line in SERVING.read_text().splitlines()
    }


def test_the_table_names_rows_kinds_and_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(LOSSES)]) == 0
    shown = capsys.readouterr().out
    assert all(row["id"] in shown for row in ROWS if row.get("trainer"))
    assert "loss rl allocated" in shown
    assert "total" in shown


def test_only_the_kinds_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SERVING), "--json", "--kinds", "vllm weights"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["kinds"]) == {"vllm weights"}
    assert main([str(SERVING), "--kinds", "vllm wieghts"]) == 2
    assert "vllm weights" in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SERVING), str(tmp_path / "none.jsonl")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{tmp_path / 'none.jsonl'}: cannot be read (No such file or directory)\n"


def test_trainers_are_predicted_by_their_own_reader() -> None:
    found = score("b", TRAINED)[0]
    assert (found.kind, found.reason) == ("lora reserved", None)
    longer = score("b", {**TRAINED, "trainer": {**TRAINED["trainer"], "seq_len": 8192}})[0]
    assert longer.predicted > found.predicted > 2 * 8 * 10**9


def test_an_empty_file_has_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n\n")
    total = run(capsys, path)["total"]
    assert total.pop("rows") == 0
    assert set(total.values()) == {None}
    assert main([str(path)]) == 0


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (changed(measured={"bytes": None, "quantity": None}), "measured.quantity is missing"),
        (changed(measured={"bytes": "16 GB"}), "measured.bytes = '16 GB' is no positive whole number"),
        (changed(measured={"bytes": None}), "measured.bytes is missing"),
        (changed(measured={"bytes": None, "fits": False}, machine={"device_bytes": None}), "device_bytes is missing"),
        (changed(measured={"quantity": "host"}), "'host' of this engine is not planned"),
        (changed(engine={"system": "llama.cpp"}), "'llama.cpp' is not planned"),
        (changed(engine={"dtype": "iq2"}), "'iq2' is not planned"),
        (changed(engine={"kv_dtype": "q4"}), "'q4' is not planned"),
        (changed(engine={"prompt_len": None, "new_tokens": None}), "neither prompt_len nor new_tokens"),
        (changed(engine={"batch": "many"}), "ValueError"),
        (changed(engine="vllm"), "engine is no table of keys"),
        (changed(model={"hidden": None}), "model has no usable hidden"),
        (changed(model={"layers": -3}), "model has no usable layers"),
        (changed(layout={"gpus": 4}), "several devices"),
        ({"measured": {"bytes": 5, "quantity": "allocated"}}, "neither trainer nor engine"),
        (
            {"trainer": {"system": "megatron", "mode": "pretrain"}, "model": MODEL, "note": "CUDA graphs: local",
             "measured": {"bytes": 5, "quantity": "allocated"}},
            "torch counts what runs in captured graphs only while it captures",
        ),
    ],
)  # fmt: skip
def test_a_row_that_is_not_predicted_says_why(row: dict[str, Any], reason: str) -> None:
    (found,) = score("a", row)
    assert not found.covered
    assert found.reason is not None
    assert reason in found.reason


@pytest.mark.parametrize("line", ["{", "[1, 2]", "null", '{"measured": 3}', '"text"', "\x00", "[" * 100_000, "{}"])
def test_lines_that_are_no_rows_count_in_coverage_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{line}\n{json.dumps(GENERATION)}\n")
    total = run(capsys, path)["total"]
    assert (total["rows"], total["coverage"], total["upper_holds"]) == (2, 0.5, 1.0)
    assert total["median_error"] < 0.05


paths = st.sampled_from([
    ("engine",), ("model",), ("measured",), ("machine",), ("trainer",), ("also",), ("layout",), ("note",),
    *(("engine", key) for key in ("system", "dtype", "tp", "memory_fraction", "batch", "version", "max_seqs")),
    *(("model", key) for key in ("layers", "vocab", "heads", "head_dim", "hidden", "experts", "mla")),
    *(("measured", key) for key in ("bytes", "quantity", "phase", "fits")),
    *(("trainer", key) for key in ("system", "loss", "mode", "tokens_per_micro_batch", "param_dtype", "lora")),
    *(("trainer", key) for key in ("seq_len", "micro_batch", "optimizer", "recompute", "attention", "base_quant")),
    *(("layout", key) for key in ("gpus", "tp", "pp", "cp", "zero_stage", "fsdp_shards", "replicas")),
])  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=3,
)


@settings(max_examples=300)
@given(st.sampled_from([TRAINED, *ROWS]) | st.just(TRAINED), paths, values)
def test_no_value_of_any_key_ends_the_command(row: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    broken = json.loads(json.dumps(row))
    if len(path) == 1:
        broken[path[0]] = value
    else:
        broken.setdefault(path[0], {})[path[1]] = value
    found = score("a", broken)
    json.dumps(planner_accuracy.result(found))
    assert all(each.covered or each.reason for each in found)


def test_a_run_that_did_not_fit_is_right_above_the_device() -> None:
    small, large = (
        score(
            "a",
            changed(
                measured={"bytes": None, "quantity": "device_used", "fits": False}, machine={"device_bytes": size}
            ),
        )
        for size in (10 * 10**9, 10**11)
    )
    assert [each[0].holds for each in (small, large)] == [True, False]
    figures = summary([*small, *large])
    assert (figures["coverage"], figures["upper_holds"], figures["median_error"]) == (1.0, 0.5, None)


def test_figures_of_a_group() -> None:
    rows = [Scored(str(i), "k", 100, predicted, 110, None) for i, predicted in enumerate((90, 100, 101, 120))]
    figures = summary([*rows, Scored("e", "k", None, None, None, "no idea"), Scored("f", "k", 200, 200, 190, None)])
    assert figures == {
        "rows": 6, "coverage": pytest.approx(5 / 6), "median_error": 0.01, "p90_error": pytest.approx(0.16),
        "worst_error": 0.2, "upper_holds": 0.8, "upper_ratio": 1.1,
    }  # fmt: skip


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0, 1))
def test_percentiles_lie_within_the_values(values: list[float], share: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= percentile(ordered, share) <= ordered[-1]


@pytest.mark.parametrize("path", [SERVING, LOSSES])
def test_names_and_sources_do_not_change_a_prediction(path: Path) -> None:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        # whose benchmark it is decides in which dtype its loss was compared
        source = "by Liger-Kernel" if "Liger-Kernel" in row["source"] else "elsewhere"
        renamed = {**row, "id": "x", "source": source, "model": {**row["model"], "name": "some model"}}
        assert [each.predicted for each in score("a", row)] == [each.predicted for each in score("a", renamed)]


def test_the_readme_has_the_figures_of_the_rule_of_thumb() -> None:
    pairs = list(rule_of_thumb.errors(sorted(DATA.glob("*.jsonl"))))
    readme = (Path(__file__).parents[2] / "README.md").read_text().replace(" %", "%")
    assert f"on the {len(pairs)} public runs" in readme
    for values in zip(*pairs, strict=True):
        far = sum(value > 0.2 for value in values) / len(values)
        assert f"| {statistics.median(values):.1%} | {percentile(sorted(values), 0.9):.1%} | {far:.0%} |" in readme
