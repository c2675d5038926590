"""The table of `headway size` as text and JSON, from rows that are made up."""

import io
import json

import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType

from headway.facts import shapes
from headway.facts.machine import Limit, Machine, Pool
from headway.facts.workload import Rollout
from headway.plan.size import OTHERS, OWN, Recipe, Row, Rule, largest
from headway.plan.sizing import Sizing
from headway.plan.verdict import Kind
from headway.reports.size import size_report, tokens
from headway.reports.size_json import document

GIB = 1 << 30
POOL = "node[0].device[0]"
LIMIT = Limit("device memory", 64 * GIB, "CUDA reports out of memory", "a test")


def row(model: str, recipe: Recipe, kind: Kind, gib: int, answer: int = 2048, at_once: int | None = 5) -> Row:
    parameters = shapes.table()[model].parameters()
    return Row(model, parameters, recipe, kind, POOL, gib * GIB, (gib + 2) * GIB, LIMIT, answer, at_once)


def sizing() -> Sizing:
    own = (
        row("qwen3-0.6b", OWN[0], "fits", 10), row("qwen3-1.7b", OWN[0], "tight", 63, 0, 0),
        row("qwen3-4b", OWN[0], "does not fit", 99, 0, 0), row("qwen3-0.6b", OWN[2], "fits", 3, 32768, 64),
        row("qwen3-4b", OWN[2], "fits", 20),
    )  # fmt: skip
    others = (row("qwen3-0.6b", OTHERS[1], "fits", 30, 448, None),)
    machine = Machine("a machine", (Pool(POOL, "device", 64 * GIB, (LIMIT,)),), 2)
    models = {each.model for each in (*own, *others)}
    rules = {model: Rule(shapes.table()[model].parameters(), 64 * GIB) for model in models}
    best = {**largest(own), **largest(others)}
    return Sizing(machine, 64 * GIB, Rollout(8, 4, 100, 1000, 0, 0, 1), own, others, best, rules)


def shown(what: RenderableType, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(what)
    return [text.rstrip() for text in console.export_text().splitlines()]


def words(lines: list[str], name: str) -> str:
    return " ".join(next(text for text in lines if text.startswith(name)).split())


def test_a_cell_has_peak_verdict_longest_answer_and_samples_at_once() -> None:
    lines = shown(size_report(sizing()), 100)
    assert words(lines, "qwen3-0.6b") == "qwen3-0.6b 10.0 2k 5◀ 3.0 32k+ 64 9.5"
    assert words(lines, "qwen3-1.7b") == "qwen3-1.7b 63.0~ - 0 x 27.5"
    assert words(lines, "qwen3-4b") == "qwen3-4b 99.0x - 0 20.0 2k 5◀ 64.4x"


def test_columns_stand_under_each_other() -> None:
    lines = shown(size_report(sizing()), 100)
    rows = [text for text in lines if text.startswith("qwen3-") and "◀" in text][:2]
    assert rows[0].index("10.0") == next(text for text in lines if "99.0x" in text).index("99.0")
    assert len({text.index(".") for text in lines if text.startswith(("qwen3-0.6b 1", "qwen3-4b   "))}) == 1


def test_a_narrow_terminal_has_a_list_a_recipe() -> None:
    lines = shown(size_report(sizing()), 40)
    at = next(at for at, text in enumerate(lines) if text.split() == ["full", "GiB", "answer", "at", "once"])
    assert [" ".join(text.split()) for text in lines[at + 1 : at + 4]] == [
        "qwen3-0.6b ◀ 10.0 2k 5", "qwen3-1.7b ~ 63.0 - 0", "qwen3-4b x 99.0 - 0",
    ]  # fmt: skip
    assert max(map(len, lines)) <= 40


def test_the_rule_of_thumb_is_apart_and_decimal() -> None:
    lines = shown(size_report(sizing()), 120)
    rule = next(text for text in lines if text.startswith("16 bytes a parameter"))
    assert rule.endswith("50% of 68.7 GB of memory is 34.4 GB, for 2.15 billion parameters: qwen3-1.7b, 27.5 GB.")
    assert any(text.startswith("The ledger of qwen3-1.7b, full, in GiB: 63.00 GiB expected") for text in lines)
    assert not [text for text in lines if "GiB" in text and " GB" in text and not text.startswith("The rule")]


def test_recipes_in_which_nothing_fits_say_so() -> None:
    found = sizing()
    lines = shown(size_report(replace(found, best={"full": None})), 100)
    assert "  full none of these" in lines


@pytest.mark.parametrize(("count", "text"), [(0, "-"), (64, "64"), (1024, "1k"), (5568, "5.4k"), (32768, "32k+")])
def test_tokens(count: int, text: str) -> None:
    assert tokens(count) == text


def test_json_is_itself_again_and_has_every_row() -> None:
    found = document(sizing())
    assert json.loads(json.dumps(found)) == found
    assert len(found["rows"]) == 6
    assert found["largest"] == {"full": "qwen3-0.6b", "LoRA r16": "qwen3-4b", "full, TRL": "qwen3-0.6b"}
    assert found["rule"] == {
        "bytes_per_parameter": 16, "share": 0.5, "guess_bytes": 32 * GIB, "largest": "qwen3-1.7b"
    }  # fmt: skip
    assert [row["trained_here"] for row in found["rows"]] == [True] * 5 + [False]
    assert found["rows"][0]["limit"] == {"name": "device memory", "bytes": 64 * GIB}
    assert found["rows"][5]["in_flight"] is None
