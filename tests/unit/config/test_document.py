"""docs/runspec.md says what the sections say."""

from pathlib import Path

from headway.config.document import render


def test_the_page_is_up_to_date():
    page = Path(__file__).parents[3] / "docs" / "runspec.md"
    assert page.read_text() == render(), "run: .venv/bin/python -m headway.config.document > docs/runspec.md"


def test_a_row_has_the_key_its_default_its_bounds_and_its_meaning():
    rows = render().splitlines()
    assert any(row.startswith("| `samples` | `8` | a whole number, from 2 to 100000 |") for row in rows)
    assert any('| a size such as "512MiB", from 16MiB to 1048576GiB |' in row for row in rows)
    assert "| `rank` | `16` | a whole number, from 1 to 1024 | Rank of each adapter. |" in rows
    assert '| `kv_budget` | `"1GiB"` | a size such as "512MiB", above 0 and at most 1048576GiB |' in "\n".join(rows)
