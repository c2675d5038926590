"""docs/memory-model.md has every item that a ledger shows, and its tables have no item that no plan has."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from headway.facts import machines
from headway.facts.machine import Machine
from headway.facts.shapes import table
from headway.facts.workload import Quant
from headway.foreign.presets import PRESETS, workload
from headway.plan.generation import hf_generation
from headway.plan.item import Item
from headway.plan.ledger import Ledger
from headway.plan.plan import plan

PAGE = Path(__file__).parents[2] / "docs" / "memory-model.md"
MODEL = table()["qwen3-4b"]
CODE = re.compile(r"`([^`]+)`")
HEADER = ["item", "formula", "source", "known from"]
GRADES = (
    "assumed", "counted", "derived", "fitted on", "four idle machines", "inferred from one reading", "not measured",
    "read once", "reported",
)  # fmt: skip
MACHINES = ("gb10", "h100-80", "cpu-64gib")
APART = ("engine.colocated=false", "engine.devices=4", "engine.update=delta")
OTHER_RUNS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("headway", "cpu-64gib", ("device=cpu", "trainer.reference=copy", "rollout.eval_problems=8")),
    ("hf", "h100-80", ("trainer.optimizer.paged=true", "save=true")),
    ("fsdp2", "8xh100-80", ("layout.devices=8", "trainer.optimizer.offload=1.0")),
    ("torchtune", "8xh100-80", ("layout.devices=8", "save=true")),
    ("fsdp2", "8xh100-80", ("layout.devices=8", "save=true", "gathers=in turn")),
    ("miles-fsdp", "8xh100-80", ("save=true", "trainer.offload=none")),
    ("miles-fsdp", "8xh100-80", ("engine.system=vllm", "engine.host_copy=true")),
    ("trl", "h100-80", ("engine.system=vllm", "engine.releases=nothing", "trainer.lora.rank=16")),
    ("slime", "8xh100-80", ("trainer.copies=actor,old_actor,teacher,rollout_actor", "trainer.optimizer.offload=1")),
    ("slime", "8xh100-80", ("trainer.checkpointing=false", "trainer.megatron.offload_modules=core_attn,attn_proj")),
    (
        "slime",
        "8xh100-80",
        (
            "trainer.float8.recipe=blockwise",
            "trainer.megatron.graphs=transformer_engine",
            "trainer.megatron.inference_cache=20GiB",
        ),
    ),
    (
        "slime",
        "8xh100-80",
        ("layout.devices=4", *APART, "save=true", "tools_limit_bytes=64GiB", "rollout.eval_problems=8"),
    ),
)
"""Runs whose settings put something into the ledger that no preset has."""


def tables() -> Iterator[tuple[list[str], list[list[str]]]]:
    """The page's tables: header and rows, cell by cell."""
    rows: list[list[str]] = []
    for line in [*PAGE.read_text().splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            yield rows[0], rows[2:]
            rows = []


@cache
def item_rows() -> tuple[tuple[str, ...], ...]:
    """The rows of all tables of items."""
    return tuple(tuple(row) for header, rows in tables() if header[0] == "item" for row in rows)


def documented() -> set[str]:
    """Names in the first cells of those rows."""
    return {name for row in item_rows() for name in CODE.findall(row[0])}


def planned(preset: str, machine: Machine, overrides: Sequence[str] = ()) -> Ledger:
    run = workload(MODEL, preset, overrides)
    return plan(run, machine if run.ray else machine.without_ray())


def items(ledger: Ledger) -> set[str]:
    return {line.item for line in ledger.lines}


RUNS = tuple(
    (name, machine)
    for name in PRESETS
    for machine in MACHINES
    if machines.by_name(machine).device_count or PRESETS[name].build(MODEL).engine is None
)
"""Every preset on every machine; an engine of its own needs a device."""


@pytest.mark.parametrize(("preset", "machine"), RUNS)
def test_every_item_of_a_presets_ledger_is_on_the_page(preset: str, machine: str) -> None:
    named = set(CODE.findall(PAGE.read_text()))
    assert items(planned(preset, machines.by_name(machine))) - named == set()


@pytest.mark.parametrize(("preset", "machine", "overrides"), OTHER_RUNS)
def test_every_item_of_rarer_settings_has_a_row(preset: str, machine: str, overrides: tuple[str, ...]) -> None:
    assert items(planned(preset, machines.by_name(machine), overrides)) - documented() == set()


def test_every_row_is_of_an_item_that_some_plan_has() -> None:
    found = {
        item
        for preset, machine, overrides in [*((*run, ()) for run in RUNS), *OTHER_RUNS]
        for item in items(planned(preset, machines.by_name(machine), overrides))
    }
    generating = hf_generation(MODEL, "bf16", Quant("nf4"), batch=1, prompt=64, new_tokens=64, style="grown")
    found |= {
        each.item for name in generating.__struct_fields__ if isinstance(each := getattr(generating, name), Item)
    }
    assert documented() - found == set()


def test_every_row_says_formula_source_and_how_well_it_is_known() -> None:
    assert {tuple(header) for header, _ in tables() if header[0] == "item"} == {tuple(HEADER)}
    incomplete = [row[0] for row in item_rows() if len(row) != len(HEADER) or not all(row)]
    assert incomplete == []
    assert [row[0] for row in item_rows() if not any(grade in row[3] for grade in GRADES)] == []


def test_the_page_names_only_files_that_are_there() -> None:
    root = PAGE.parents[1]
    package = root / "src" / "headway"
    named = {name for name in CODE.findall(PAGE.read_text()) if re.fullmatch(r"[\w/-]+/[\w-]+\.(?:py|csv)", name)}
    assert named
    assert [name for name in sorted(named) if not (package / name).exists() and not (root / name).exists()] == []
