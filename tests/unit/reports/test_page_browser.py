"""The page in headless Chromium, opened from disk with the network off: `pytest -m slow tests/unit/reports`."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.reports.page.build import build, read_run
from headway.reports.page.html import page_html
from screenshot import CHARTS, PHONE, WIDE, Browser, chromium

OUTPUTS = Path(__file__).parents[2] / "data" / "outputs"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="no chromium on the PATH (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module", params=["leak", "killed"])
def path(request, tmp_path_factory) -> Path:
    page = tmp_path_factory.mktemp(request.param) / "report.html"
    page.write_text(page_html(build(read_run(OUTPUTS / request.param))), encoding="utf-8", errors="replace")
    return page


@pytest.fixture(autouse=True)
def clean(browser):
    browser.problems.clear()
    browser.requests.clear()
    yield
    assert browser.problems == []
    assert browser.requests == []


PLACES = "document.querySelectorAll('figure[data-chart]').length"
GROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_all_charts_are_drawn_and_nothing_is_wider_than_the_window(browser, path, width, dark):
    browser.open(path, width, dark=dark)
    assert browser.value(CHARTS) == browser.value(PLACES) >= 8
    assert browser.value("innerWidth") == width
    assert browser.value("document.documentElement.scrollWidth") <= width
    edges = "[...document.querySelectorAll('.plot svg')].map((each) => each.getBoundingClientRect().right)"
    assert browser.value(f"Math.max(...{edges})") <= width
    light = sum(map(int, browser.value(GROUND).strip("rgb()").split(","))) > 384
    assert light is not dark


def test_the_switch_changes_the_page_and_its_charts(browser, path):
    browser.open(path, WIDE)
    ground, curve = browser.value(GROUND), "document.querySelector('.scatterlayer .js-line').style.stroke"
    browser.value("document.getElementById('theme').click()")
    assert browser.value(GROUND) != ground
    assert browser.value("document.getElementById('theme').textContent") == "Light"
    assert browser.value(f"{curve} !== undefined")
    browser.value("document.getElementById('theme').click()")
    assert browser.value(GROUND) == ground


def test_a_name_in_the_legend_hides_its_series(browser, path):
    browser.open(path, WIDE)
    shown = "document.querySelector('figure[data-chart=pool-0]').querySelectorAll('.scatterlayer .trace').length"
    before = browser.value(shown)
    item = "document.querySelector('figure[data-chart=pool-0] .legend button[aria-pressed=true]')"
    browser.value(f"{item}.click()")
    browser.wait_for(f"{shown} === {before - 1}")


def test_a_limit_far_above_is_hidden_until_it_is_asked_for(browser, path):
    browser.open(path, WIDE)
    plot = "document.querySelector('figure[data-chart=pool-0] .plot')"
    buttons = "[...document.querySelectorAll('figure[data-chart=pool-0] .legend button')]"
    item = f"{buttons}.find((each) => each.textContent.includes('MemAvailable'))"
    assert browser.value(f"{item}.getAttribute('aria-pressed')") == "false"
    assert browser.value(f"{plot}.layout.yaxis.range[1]") < 12
    browser.value(f"{item}.click()")
    browser.wait_for(f"{plot}.layout.yaxis.range[1] > 20")


def test_charts_over_time_zoom_together(browser, path):
    browser.open(path, WIDE)
    first, second = (f"document.querySelector('figure[data-chart={name}] .plot')" for name in ("pool-0", "processes"))
    browser.value(f"Plotly.relayout({first}, {{'xaxis.range[0]': 5, 'xaxis.range[1]': 9}}).then(() => 1)")
    browser.wait_for(f"Math.abs({second}.layout.xaxis.range[1] - 9) < 1e-6")


def test_it_prints_light(browser, path):
    browser.open(path, WIDE, dark=True)
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") >= 3
    assert browser.value("document.documentElement.dataset.theme") is None


def test_hostile_text_stays_text(browser, tmp_path):
    """Names that are markup to HTML, to JSON in a script and to the plotting library."""
    evil = '</script><b id="in">x</b><a href="javascript:alert(1)">y</a>%{x}<br>'
    run = Path(shutil.copytree(OUTPUTS / "killed", tmp_path / "run"))
    lines = [json.loads(line) for line in (run / "recording.jsonl").read_text().splitlines()]
    lines[0]["machine"]["pools"][0]["limits"][0]["name"] = evil
    lines[-1]["phase"] = evil
    (run / "recording.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = tmp_path / "report.html"
    page.write_text(page_html(build(read_run(run))), encoding="utf-8")
    browser.open(page, WIDE)
    assert browser.value("document.getElementById('in')") is None
    assert browser.value("document.querySelectorAll('a[href^=javascript]').length") == 0
    names = "[...document.querySelectorAll('.legend')].map((each) => each.textContent).join()"
    assert evil[:60] in browser.value(names)
