"""What the pages show is what the commands print, and every command that they name exists."""

import re
from pathlib import Path

import pytest

from headway.cli.document import render

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if re.search("<!-- .*headway .* -->", page.read_text())
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_outputs_are_what_the_commands_print(page: Path) -> None:
    name = page.relative_to(ROOT)
    assert page.read_text() == render(page.read_text()), f"run: .venv/bin/python -m headway.cli.document {name}"


def test_a_block_is_made_anew_and_the_rest_of_a_page_stays() -> None:
    page = "before\n<!-- headway --version -->\n```text\nold\n```\n```text\nanother\n```\nafter\n"
    made = render(page)
    assert re.search(r"```text\nheadway \d+\.\d+.*\n```\n```text\nanother\n```\nafter\n$", made)
    assert made.startswith("before\n<!-- headway --version -->\n")


def test_links_between_pages_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
