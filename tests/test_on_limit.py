"""`headway train --on-limit`: a fresh process goes on from the checkpoint, as long as each try gets further."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import planted_leak
from headway.cli.again import NOWHERE, TRIES, Place, command, place, refusal
from headway.guard.recorder import read_recording

TRAIN = """
import json, os, sys
from pathlib import Path
from headway.cli import app
from headway.cli.again import go_on, place
from headway.errors import HeadwayError

# a run of `steps` steps that does two of them in each process, and then meets a limit
checkpoints, steps = Path(sys.argv[-2]), int(sys.argv[-1])
tries = int(sys.argv[3]) if sys.argv[2] == "--tries" else 0
before = place(checkpoints)
print("pid", os.getpid(), "try", tries, "from", before.step, flush=True)
step = min(before.step + 2, steps)
folder = checkpoints / f"step-{step:06d}"
folder.mkdir(parents=True, exist_ok=True)
(folder / "rollout.json").write_text(json.dumps({"step": step, "updates": 0, "rollout": []}))
try:
    go_on(before, place(checkpoints), tries, "the limit is near")
except HeadwayError as error:
    print(app.error_text(error))
    sys.exit(error.exit_code)
"""


def test_the_same_process_goes_on_until_a_try_gets_no_further(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    ran = subprocess.run(
        [sys.executable, str(script), "train", str(tmp_path / "checkpoints"), "6"], capture_output=True, text=True
    )
    lines = ran.stdout.splitlines()
    pids = {line.split()[1] for line in lines if line.startswith("pid")}
    assert len(pids) == 1
    assert [line.split()[3:] for line in lines if line.startswith("pid")] == [
        [str(tries), "from", str(2 * tries)] for tries in range(4)
    ]
    assert ran.returncode == 5
    assert lines[-1] == "--on-limit resume: this try ended at a limit where it began, after step 6: another would too"
    assert "a fresh process goes on after step 2 (try 2)" in ran.stderr


def test_a_place_is_read_from_the_last_checkpoint(tmp_path: Path) -> None:
    assert place(tmp_path / "none") == NOWHERE
    for step, updates, rollout in ((9, 0, []), (10, 1, [{}])):
        folder = tmp_path / f"step-{step:06d}"
        folder.mkdir()
        (folder / "rollout.json").write_text(json.dumps({"step": step, "updates": updates, "rollout": rollout}))
    assert place(tmp_path) == Place(10, 2)
    (tmp_path / "step-000010/rollout.json").write_text("torn")
    assert place(tmp_path) == NOWHERE


def test_tries_are_bounded_and_each_must_get_further() -> None:
    assert refusal(Place(4, 0), Place(4, 1), 0) is None
    assert refusal(Place(4, 1), Place(5, 0), TRIES - 1) is None
    assert "where it began" in str(refusal(Place(5, 0), Place(5, 0), 0))
    assert "where it began" in str(refusal(Place(5, 0), Place(4, 1), 0))
    assert f"{TRIES} fresh processes" in str(refusal(Place(4, 0), Place(9, 0), TRIES))


def test_the_next_command_line_is_the_same_one() -> None:
    words = ["python", "-X", "utf8", "/bin/headway", "train", "run.toml", "--set", "train.steps=3"]
    once = command(words, 4, 1)
    assert once == ["python", "-X", "utf8", "/bin/headway", "train", "--tries", "1", *words[5:]]
    assert command(once, 6, 2) == ["python", "-X", "utf8", "/bin/headway", "train", "--tries", "2", *words[5:]]


@pytest.mark.slow
def test_a_leaking_reward_is_foreseen_stopped_and_resumed_to_the_same_weights(tmp_path: Path) -> None:
    assert planted_leak.measure(tmp_path, steps=60, reached=45, leak=20_000_000, seconds=1.0) == 0


@pytest.mark.slow
def test_ctrl_c_ends_a_run_that_would_resume(tmp_path: Path) -> None:
    spec = planted_leak.write(tmp_path / "leak", 200, 40_000_000, 1.0)
    arguments = ["train", str(spec), "--set", f"output.dir={tmp_path / 'run'}", "--set", "memory.limit=1GB"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", *arguments, "--on-limit", "resume"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    recording, deadline = tmp_path / "run/recording.jsonl", time.monotonic() + 200
    while time.monotonic() < deadline and not (recording.exists() and recording.read_text().count('"header"') == 2):
        time.sleep(0.2)
    time.sleep(5)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output.decode()[-2000:]
    assert len(read_recording(recording).segments) == 2
