"""docs/workload.md says what the records and presets say."""

from pathlib import Path

from headway.foreign.document import render
from headway.foreign.settings import table


def test_the_page_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs" / "workload.md"
    assert page.read_text() == render(), "run: .venv/bin/python -m headway.foreign.document > docs/workload.md"


def test_every_key_has_one_row_with_what_it_accepts_and_each_trainer_s_value() -> None:
    rows = [row.split(" | ") for row in render().splitlines() if row.startswith("| `")]
    keys = [row[0].strip("| `") for row in rows]
    alike = ("reward_model.", "teacher.", "reference_model.")
    assert all(keys.count(key) == (0 if key.startswith(alike) else 1) for key in table())
    assert {key.partition(".")[2] for key in table() if key.startswith("critic.")} == {
        key.partition(".")[2] for key in table() if key.startswith("teacher.")
    }
    found = {row[0].strip("| `"): row[1:] for row in rows}
    assert found["rollout.kv_budget"][:2] == ["a size such as 512MiB", "`2.00 GiB`"]
    assert found["engine.memory_fraction"][1:3] == ["-", "`0.4`"]
