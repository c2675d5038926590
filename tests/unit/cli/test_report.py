"""`headway report` as a command: what it reads, writes and refuses."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.app import app
from headway.errors import InputError

OUTPUTS = Path(__file__).parents[2] / "data" / "outputs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OUTPUTS / "killed", tmp_path / "run"))


def run(*words: str | Path) -> str:
    done = CliRunner().invoke(app, ["report", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_a_page_beside_the_run(folder):
    assert f"broke off. Written to {folder / 'report.html'}" in run(folder)
    page = (folder / "report.html").read_text()
    assert "why is not in what was read" in page or "was killed there" in page
    assert 'href="./recording.jsonl"' in page
    assert [path.name for path in folder.iterdir() if path.name.endswith(".tmp")] == []
    run(folder)


def test_a_page_somewhere_else_has_no_links(folder, tmp_path):
    run(folder, "--out", tmp_path / "page.html")
    assert 'href="./' not in (tmp_path / "page.html").read_text()
    assert not (folder / "report.html").exists()


def test_a_run_that_finished_needs_no_doctor():
    assert json.loads(run(OUTPUTS / "leak", "--json"))["doctor"] is None


def test_json_writes_no_page(folder):
    found = json.loads(run(folder, "--json"))
    assert found["ending"]["word"] == "broke off"
    assert found["history"]["pools"][0]["curves"][0]["points"][0] == [0.0, 380440576.0]
    assert found["doctor"]["answer"]["mechanism"] == "unknown"
    assert not (folder / "report.html").exists()


def test_json_goes_to_the_file_that_is_named(folder, tmp_path):
    text = run(folder, "--json", "--out", tmp_path / "run.json")
    assert text == f"run: broke off. Written to {tmp_path / 'run.json'}\n"
    written, printed = json.loads((tmp_path / "run.json").read_text()), json.loads(run(folder, "--json"))
    assert written | {"made": 0} == printed | {"made": 0}
    with pytest.raises(InputError, match="--open"):
        run(folder, "--json", "--open")


def test_the_doctor_reads_logs_and_not_what_a_model_wrote(folder):
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"
    )
    row = json.dumps({"step": 1, "phase": "rollout", "text": text, "reward": 0.0})
    (folder / "rollouts.jsonl").write_text(row + "\n")
    assert json.loads(run(folder, "--json"))["doctor"]["answer"]["mechanism"] == "unknown"
    (folder / "run.log").write_text(text + "\n")
    assert json.loads(run(folder, "--json"))["doctor"]["answer"]["mechanism"] == "device-allocation-failure"


def test_a_run_that_goes_on(folder):
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert json.loads(run(folder, "--json"))["ending"]["word"] == "running"
    finally:
        os.close(handle)


def test_what_is_no_run_is_refused(tmp_path):
    for path, said in ((tmp_path, "no output directory of headway"), (tmp_path / "none", "no such directory")):
        with pytest.raises(InputError, match=said):
            run(path)


def test_where_no_page_can_be_written(folder, tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        run(folder, "--out", tmp_path / "none" / "page.html")
    with pytest.raises(InputError, match="cannot be written"):
        run(folder, "--out", tmp_path)
    with pytest.raises(InputError, match="set --out"):  # a name so long that removing the temporary file fails too
        run(folder, "--out", tmp_path / f"{'x' * 250}.html")


def test_the_browser_is_asked_for_the_page(folder, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    run(folder, "--open")
    assert opened == [(folder / "report.html").as_uri()]
