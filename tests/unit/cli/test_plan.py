"""`headway plan`: exit codes, JSON, what a terminal shows, and what it loads."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headway.cli.app import app, main
from headway.config.load import load

RUN = '[model]\npath = "tiny-llama"\ninit = "random"\n[data]\ntask = "gcd"\n[eval]\nproblems = 0\n'


def call(*words: str, width: int = 80) -> Result:
    return CliRunner().invoke(app, ["plan", *words], env={"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb"})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN)
    return "run.toml"


@pytest.mark.parametrize(
    ("words", "code", "verdict"),
    [
        (("qwen3-0.6b", "--machine", "gb10"), 0, "fits"),
        (("qwen3-8b", "--machine", "rtx4090"), 3, "does not fit"),
        (("qwen3-0.6b", "--machine", "rtx4090", "--set", "device=cpu"), 4, "cannot tell"),
    ],
)
def test_the_exit_code_is_the_verdict(words: tuple[str, ...], code: int, verdict: str) -> None:
    shown, written = call(*words), call(*words, "--json")
    assert (shown.exit_code, written.exit_code) == (code, code)
    assert json.loads(written.stdout)["verdict"] == verdict
    assert f"{verdict.capitalize()}: " in shown.stdout


def test_a_tight_plan_exits_like_one_that_fits(run: str) -> None:
    large = ("--set", "machine.host=64GiB")
    pool = json.loads(call(run, "--machine", "cpu-64gib", *large, "--json").stdout)["pools"][0]
    between = (pool["expected_bytes"] + pool["upper_bytes"]) // 2
    tight = call(run, "--machine", "cpu-64gib", "--set", f"machine.host={between}", "--json")
    found = json.loads(tight.stdout)
    assert found["pools"][0]["limits"][0]["bytes"] == between
    assert (found["verdict"], tight.exit_code) == ("tight", 0)


@pytest.mark.parametrize("words", [("nothing.toml",), ("run.sh",), ("qwen3-4b", "--machine", "gb11")])
def test_bad_input_is_a_message_and_code_2(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["headway", "plan", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert printed.err.startswith("headway: ")


@pytest.mark.parametrize("width", [40, 80, 160])
def test_every_width_shows_all_without_a_cut_number(width: int) -> None:
    text = call("qwen3-8b", "--machine", "rtx4090", "--lines", width=width).stdout
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    flat = " ".join(text.split())
    for said in ("node[0].device[0]", "worst phase ", "device memory 23.65 GiB", "What to change"):
        assert said in flat
    for phase in ("load", "rollout", "train", "step", "save"):
        assert re.search(rf"^{phase} .*[A-F+█].* \d", text, re.MULTILINE)


def test_sizes_are_binary_and_never_decimal() -> None:
    text = call("qwen3-4b", "--trainer", "miles-fsdp", "--machine", "gb10", "--lines").stdout
    assert not re.search(r"\b\d[\d.,]* ?[GM]B\b", text)
    assert "GiB" in text


def test_lines_show_each_line_with_its_formula_and_source() -> None:
    words = ("qwen3-0.6b", "--machine", "gb10")
    lines = json.loads(call(*words, "--json").stdout)["lines"]
    text = " ".join(call(*words, "--lines", width=200).stdout.split())
    for line in lines:
        assert f"= {' '.join(line['formula'].split())}" in text
        assert line["source"] in text
    assert lines[0]["formula"] not in call(*words).stdout


def test_what_nobody_said_is_listed_until_it_is_said() -> None:
    assert "rollout.max_answer = 1024" in call("qwen3-0.6b", "--machine", "gb10").stdout
    said = call("qwen3-0.6b", "--machine", "gb10", "--set", "rollout.max_answer=300").stdout
    assert "rollout.max_answer" not in said
    assert "answers up to 300 tokens" in said


def test_changes_that_do_nothing_are_said() -> None:
    text = call("qwen3-8b", "--machine", "rtx4090", "--lines", width=200).stdout
    idle = text.partition("No help alone for node[0].device[0]")[2]
    assert re.search(r"train\.logprob_chunk = \S+: \w+ stays at [\d.]+ GiB", idle)


def test_a_fix_fits_and_leaves_its_input_alone(run: str, tmp_path: Path) -> None:
    small = ("--machine", "rtx4090", "--set", "model.path=qwen3-4b")
    done = call(run, *small, "--fix", "fixed.toml")
    assert done.exit_code == 3
    assert done.stderr.startswith("fixed.toml: ")
    assert (tmp_path / run).read_text() == RUN
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fixed.toml", "run.toml"]
    again = call("fixed.toml", "--machine", "rtx4090", "--json")
    assert (again.exit_code, json.loads(again.stdout)["verdict"]) == (0, "fits")
    remedy = next(each for each in json.loads(call(run, *small, "--json").stdout)["remedies"])
    device = next(pool for pool in json.loads(again.stdout)["pools"] if pool["pool"] == remedy["pool"])
    assert (device["expected_bytes"], device["upper_bytes"]) == (
        remedy["after"]["expected_bytes"], remedy["after"]["upper_bytes"],
    )  # fmt: skip
    assert load(tmp_path / "fixed.toml").output.dir == tmp_path / "runs" / "fixed"


COMMENTED = """# the first try
model = {path = "qwen3-4b", init = "random"}   # the base
[data]
file = "sums.jsonl"
format = "text"

[train]
lr = 1e-6  # as in the paper
steps = 20
[reward]
kind = "exact"
[output]
dir = "here"
"""


@pytest.mark.parametrize("out", ["fixed.toml", "sub/fixed.toml"])
def test_a_fix_keeps_the_lines_that_it_does_not_change(run: str, tmp_path: Path, out: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / run).write_text(COMMENTED)
    rows = ({"prompt": f"{number}+1=", "label": str(number + 1)} for number in range(40))
    (tmp_path / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = call(run, "--machine", "rtx4090", "--set", "train.steps=30", "--fix", out)
    assert (done.exit_code, done.stderr.startswith(f"{out}: [lora] rank = 16")) == (3, True), done.exception
    lines = (tmp_path / out).read_text().splitlines()
    assert lines[0] == "# [lora] rank = 16, so that it fits"
    assert lines[1].startswith("# what it costs: learning (")
    changed = {"steps = 20": "steps = 30"}
    if out != "fixed.toml":
        # a file of data is beside the RunSpec, the run's folder below the folder that one stands in
        changed['file = "sums.jsonl"'] = f'file = "{tmp_path}/sums.jsonl"'
    expected = [changed.get(line, line) for line in COMMENTED.splitlines()]
    assert lines[2:] == [*expected, "", "[lora]", "rank = 16"]
    assert json.loads(call(out, "--machine", "rtx4090", "--json").stdout)["verdict"] == "fits"


def test_a_fix_never_goes_over_a_file(run: str, tmp_path: Path) -> None:
    done = call(run, "--machine", "rtx4090", "--set", "model.path=qwen3-4b", "--fix", run)
    assert "is there already" in str(done.exception)
    assert (tmp_path / run).read_text() == RUN


def test_a_run_that_fits_needs_no_fix(run: str, tmp_path: Path) -> None:
    done = call(run, "--machine", "gb10", "--fix", "fixed.toml")
    assert (done.exit_code, "fits as it is" in done.stderr) == (0, True)
    assert not (tmp_path / "fixed.toml").exists()


def test_a_fix_of_another_trainer_s_run_says_which_flags(run: str, tmp_path: Path) -> None:
    words = ("qwen3-4b", "--trainer", "miles-fsdp", "--machine", "rtx4090")
    first = next(each for each in json.loads(call(*words, "--json").stdout)["remedies"] if each["verdict"] == "fits")
    done = call(*words, "--fix", "fixed.toml")
    assert "only a RunSpec can be written" in str(done.exception)
    assert first["text"] in str(done.exception)
    assert not (tmp_path / "fixed.toml").exists()


@pytest.mark.parametrize("words", [["qwen3-4b", "--machine", "gb10"], ["run.toml"], ["run.toml", "--json"]])
def test_a_plan_loads_no_heavy_library(run: str, words: list[str]) -> None:
    code = (
        "import sys; from headway.cli.app import app\n"
        f"try: app(['plan', *{words!r}])\nexcept SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    assert "headway.plan.plan" in loaded
    heavy = {"torch", "transformers", "numpy", "ray", "regex", "datasets", "headway.train"}
    assert not heavy & set(loaded)
    # of a RunSpec the problems are read, by modules that need nothing heavy
    assert not {"headway.rollout.hf", "headway.rollout.rewards"} & set(loaded)
    if "--json" in words:
        assert "rich.table" not in loaded
    if words[0] == "qwen3-4b":
        assert "headway.config.sections" not in loaded
