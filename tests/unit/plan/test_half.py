"""Devices without bf16: what is said of a run in bf16, and in which precision changes are proposed."""

import pytest

from headway.facts.machines import by_name
from headway.facts.shapes import table
from headway.facts.workload import Workload
from headway.foreign.presets import workload
from headway.plan.half import proposes
from headway.plan.planned import Planned, examine


def run(trainer: str, *settings: str) -> Workload:
    return workload(table()["qwen2.5-1.5b"], trainer, settings)


def said(found: Planned) -> str:
    return " ".join(text for text in found.workload.unknown if "bf16" in text)


def changes(found: Planned) -> list[str]:
    return [change.text for remedy in found.advice.remedies for change in remedy.changes]


@pytest.mark.parametrize(("machine", "trainer", "settings", "expected"), [
    ("t4", "trl", (), True),
    ("2xv100-32", "trl", (), True),
    ("a100", "trl", (), False),
    ("t4", "trl", ("trainer.param_dtype=fp32", "trainer.compute_dtype=none"), False),
    ("t4", "trl", ("trainer.param_dtype=fp32", "trainer.compute_dtype=fp16"), False),
])  # fmt: skip
def test_a_run_in_bf16_on_a_device_without_it_is_told(machine, trainer, settings, expected) -> None:
    found = said(examine(run(trainer, *settings), by_name(machine)))
    assert ("has no bf16" in found) == expected


def test_changes_there_are_in_fp16_and_trained_parameters_stay_in_fp32() -> None:
    without, having = examine(run("trl"), by_name("t4")), examine(run("trl"), by_name("rtx4060-ti"))
    assert any("--dtype float16" in text for text in changes(without))
    assert not any("bfloat16" in text for text in changes(without))
    assert any("bfloat16" in text for text in changes(having))


def test_trained_parameters_in_half_precision_are_proposed_in_bf16_alone() -> None:
    full, frozen, own = run("trl"), run("trl", "trainer.lora.rank=8"), run("headway", "trainer.lora.rank=8")
    for each, machine, expected in (
        (full, "t4", False), (full, "a100", True), (frozen, "t4", True), (own, "t4", False), (own, "a100", True),
    ):  # fmt: skip
        assert proposes(each, by_name(machine), "trainer.param_dtype", "bf16") == expected
    assert proposes(full, by_name("t4"), "trainer.rows", 1)


def test_an_engine_in_bf16_is_refused_there() -> None:
    found = examine(run("trl", "engine.system=vllm"), by_name("t4"))
    assert "vLLM and FlashAttention refuse it" in said(found)
