"""Megatron's public measurements: rows of B200 runs, of NVIDIA's functional tests and of its recipes."""

import csv
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import golden_rows
import megatron_golden
import rows_megatron

DATA = Path(__file__).parents[3] / "data" / "measured"
ROWS = [json.loads(line) for line in (DATA / "megatron.jsonl").read_text().splitlines()]
"""Each names its source."""
GOLDEN = list(csv.DictReader((DATA / "megatron_golden.csv").read_text().splitlines()))
"""Of NVIDIA/Megatron-LM; the column `file` has the path in that repository."""
B200 = [row for row in ROWS if row["machine"]["device"] == "B200"]
OTHERS = [row for row in ROWS if row not in B200]


def identity(row: dict[str, Any]) -> str:
    return f"{row['id']} {row['model']['name']}"


@pytest.mark.parametrize("row", B200, ids=identity)
def test_runs_of_a_known_release_agree_to_a_fifth_of_a_percent(row: dict[str, Any]) -> None:
    found = rows_megatron.predict(row)
    assert found.bytes == pytest.approx(row["measured"]["bytes"], rel=0.0025)
    assert row["measured"]["bytes"] <= found.upper <= 1.05 * row["measured"]["bytes"]


def test_each_stage_of_a_pipeline_agrees() -> None:
    """DeepSeek-V2 cut to four layers over two stages: the first rank of each, not only the worst."""
    row = next(row for row in ROWS if row["layout"]["pp"] == 2 and row in B200)
    measured = {entry["rank"]: entry["bytes"] for entry in row["also"] if entry["quantity"] == "allocated"}
    work = rows_megatron.workload(row)
    stages = rows_megatron.Run.of(work).stages()
    for rank, stage in (("0", stages[0]), ("4", stages[1])):
        assert rows_megatron.peak(work, (stage,)).bytes == pytest.approx(measured[rank], rel=0.005)


@pytest.mark.parametrize("row", OTHERS, ids=identity)
def test_runs_of_unknown_releases_are_near_and_under_their_bound(row: dict[str, Any]) -> None:
    found = rows_megatron.predict(row)
    assert found.bytes == pytest.approx(row["measured"]["bytes"], rel=0.045)
    assert found.upper >= row["measured"]["bytes"]


def test_reserved_memory_is_above_allocated_and_under_its_bound() -> None:
    for row in B200:
        entry = next(each for each in row["also"] if each["quantity"] == "reserved" and each["rank"] == "max")
        found = rows_megatron.predict({**row, "measured": entry})
        assert found.bytes == pytest.approx(entry["bytes"], rel=0.08)
        assert found.upper >= entry["bytes"]


def test_functional_tests_of_megatron() -> None:
    scored = megatron_golden.score_all(GOLDEN)
    covered = [row for row in scored if not row.reason]
    assert [row.reason for row in scored if row.reason] == ["model multimodal-llava"]
    assert all(row.end_within and row.peak_within for row in covered)
    assert median(abs(row.end_predicted / row.end - 1) for row in covered) < 0.03
    assert median(abs(row.peak_predicted / row.peak - 1) for row in covered) < 0.015


def test_an_older_container_has_no_deterministic_flash_attention() -> None:
    """The same launch arguments: unfused attention where it was recorded in the container of January 2024."""
    case = "gpt3_mcore_te_tp1_pp1_resume_torch_dist_dist_optimizer"
    rows = {row["env"]: row for row in GOLDEN if row["case"] == case}
    eager = golden_rows.workload(rows["lts_dgxa100_dracooci"])
    assert eager.trainer.attention == "eager"
    assert golden_rows.workload(rows["lts"]).trainer.attention == "flash"
    assert golden_rows.workload(rows["lts_dgx_a100"], renewed=True).trainer.attention == "flash"
    assert golden_rows.workload(rows["lts_dgx_a100"], renewed=False).trainer.attention == "eager"
    free = {**rows["lts_dgxa100_dracooci"], "case": "gpt3_mcore_te_tp2_pp2_resume_torch_dist_reshard_1x4xNone"}
    assert golden_rows.workload(free).trainer.attention == "flash"


def test_the_command_prints_shares(capsys: pytest.CaptureFixture[str]) -> None:
    assert megatron_golden.main([str(DATA / "megatron_golden.csv"), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["rows"], figures["covered"], figures["end_within"]) == (29, 28, 1.0)
    assert megatron_golden.main([str(DATA / "nothing.csv")]) == 2
