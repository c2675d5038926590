"""`headway rehearse` from end to end: verdicts, exit codes, what is left behind. What starts one is slow."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from headway.facts import machines, shapes
from headway.facts.machine import Limit, Machine, Pool
from headway.foreign.presets import workload
from headway.guard.recorder import read_recording
from headway.guard.rehearsal import Ended, Reached
from headway.guard.rehearsed import judge
from headway.plan.ledger import Phase
from headway.plan.plan import plan
from headway.plan.planned import examine
from headway.plan.room import larger_model, longest_answer, without_model
from headway.plan.verdict import fits_surely, with_lengths
from headway.reports.ledger import refusal
from headway.reports.plan import plan_report
from headway.reports.rehearse import document, report
from headway.units import format_bytes

ROOT = Path(__file__).parents[1]
SPEC = """
model = {path = "tiny-qwen3", init = "random", dtype = "fp32"}
data = {file = "sums.jsonl", format = "text", max_prompt = 16}
reward = {kind = "exact", extract = "whole"}
rollout = {prompts = 8, samples = 16, max_answer = 240}
train = {steps = 40, cap = 65536, checkpointing = false}
eval = {problems = 4}
memory = {threads = 1}
output = {tensorboard = false}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = ({"prompt": f"{a} + {b} =", "label": str(a + b)} for a in range(6) for b in range(6))
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.toml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def headway(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway", "rehearse", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def shown(found) -> str:
    console = Console(width=100, highlight=False)
    with console.capture() as capture:
        console.print(report(found))
    return capture.get()


class TestJudging:
    """What follows from a recording: the recording is a real one, of a run on the CPU."""

    @pytest.fixture
    def recording(self, tmp_path: Path) -> Path:
        from headway.guard.recorder import Recorder

        machine = machines.by_name("h100-80")
        with Recorder(tmp_path / "recording.jsonl", machine) as recorder:
            for phase in (Phase.LOAD, Phase.ROLLOUT):
                with recorder.phase(phase, 1):
                    pass
        return tmp_path / "recording.jsonl"

    def planned(self):
        run = workload(shapes.table()["qwen3-0.6b"], "headway", ("device=cpu",))
        return examine(run, machines.with_host(machines.by_name("h100-80"), 64 << 30).without_ray())

    def test_one_that_went_through_fits(self, recording: Path) -> None:
        ended = Ended(0, "save", 2, 1 << 20, None, "", (), 0, 3.0)
        found = judge(self.planned(), ended, recording)
        assert found.fits
        assert {row.phase: row.kind for row in found.rows}[Phase.TRAIN] == "not reached"
        measured = next(row.measured for row in found.rows if row.phase is Phase.LOAD)
        assert measured == read_recording(recording).segments[-1].peaks[Phase.LOAD].tree_peak
        assert found.larger is not None
        assert found.larger.what == "qwen3-1.7B"
        assert "Next size up, qwen3-1.7B: would need" in shown(found)
        assert document(found)["fits"] is True

    def test_one_that_was_ended_says_where_and_what_it_would_have_needed(self, recording: Path) -> None:
        planned = self.planned()
        limit = planned.outcome.pools[0].limit
        assert limit is not None
        ended = Ended(-9, "train", 2, limit.bytes + 1, Reached(limit, limit.bytes + 1), "", (), 0, 3.0)
        found = judge(planned, ended, recording)
        assert not found.fits
        assert found.worst is not None
        assert (found.worst.phase, found.worst.kind, found.room) == (Phase.TRAIN, "does not fit", -1)
        text = " ".join(shown(found).split())
        assert "ended by headway at step 2, phase train" in text
        assert "train is planned to need" in text
        assert "Room left" not in text

    @pytest.mark.parametrize("line", ['{"kind": "failure", "t": 1.0, "step": 2}\n'])
    def test_allocations_that_failed_do_not_fit(self, recording: Path, line: str) -> None:
        recording.write_text(recording.read_text() + line)
        found = judge(self.planned(), Ended(0, "save", 2, 1, None, "", (), 0, 3.0), recording)
        assert not found.fits
        assert "1 allocations failed" in shown(found)


def test_the_longest_answer_is_the_longest_whose_plan_fits() -> None:
    endless = replace(shapes.table()["qwen3-1.7b"], context=0)
    run = workload(endless, "headway")
    machine = machines.by_name("h100-80").without_ray()
    longest = longest_answer(run, machine, surely=True)
    assert longest_answer(replace(run, model=shapes.table()["qwen3-1.7b"]), machine, surely=True) == 40_960 - 512
    assert fits_surely(with_lengths(run, max_answer=longest), machine)
    assert not fits_surely(with_lengths(run, max_answer=longest + 1), machine)


def test_the_largest_model_has_no_next_one() -> None:
    machine = machines.by_name("h100-80").without_ray()
    run = workload(shapes.table()["qwen3-32b"], "headway")
    pool = plan(run, machine).pools()[0]
    assert larger_model(workload(shapes.table()["qwen3-14b"], "headway"), machine, pool).what == "qwen3-32B"
    assert larger_model(run, machine, pool) is None


def limited(size: int, **model: int):
    run = workload(replace(shapes.table()["qwen3-0.6b"], **model), "headway", ("device=cpu",))
    limit = Limit("memory.limit", size, "headway does not start the run", "RunSpec")
    return examine(run, Machine("here", (Pool("node[0].host", "host", size, (limit,)),), 2))


def test_a_limit_below_the_process_alone_asks_for_no_smaller_model() -> None:
    for size, says in ((300 << 20, True), (600 << 20, False)):
        planned = limited(size)
        text = refusal(planned.ledger, planned.outcome.pools, [])
        assert ("no model fits: memory.limit" in text) == says
        assert ("take a smaller model" in text) != says
        console = Console(width=200)
        with console.capture() as capture:
            console.print(plan_report(planned, "headway"))
        assert ("No model fits" in capture.get()) == says
    alone = without_model(limited(300 << 20).ledger, "node[0].host")
    assert f"hold without one, {format_bytes(alone)}; set it to at least" in refusal(
        limited(300 << 20).ledger, limited(300 << 20).outcome.pools, []
    )


def test_the_bound_of_the_search_is_no_longest_answer(tmp_path: Path) -> None:
    def longest(**model: int) -> str:
        planned = limited(1 << 50, **model)
        found = judge(planned, Ended(-9, "load", 0, 1, None, "", (), 0, 3.0), tmp_path / "recording.jsonl")
        return " ".join(shown(found).split())

    assert "1,048,576 or more tokens surely fit" in longest(context=0)
    assert "40,448 tokens surely fit" in longest()  # the model's context, less the prompt


@pytest.mark.slow
def test_a_run_that_fits(folder: Path) -> None:
    done = headway("run.toml", "--json", "--set", "rollout.max_answer=20", "--out", "kept")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["fits"]
    assert {row["phase"]: row["verdict"] for row in found["phases"]} == dict.fromkeys(
        ("load", "rollout", "train", "step", "save", "eval"), "fits"
    )
    for row in found["phases"]:
        assert abs(row["predicted_bytes"] - row["measured_bytes"]) < 0.15 * row["measured_bytes"]
    assert (folder / "kept/run/recording.jsonl").is_file()
    assert not (folder / "runs").exists()


@pytest.mark.slow
def test_a_run_that_dies_is_ended_before_its_limit(folder: Path) -> None:
    done = headway("run.toml", "--set", "memory.limit=600MiB")
    assert done.returncode == 3, done.stderr
    text = " ".join(done.stdout.split())
    assert "Does not fit: ended by headway at step 2, phase train" in text
    assert "memory.limit allows 600.0 MiB" in text
    assert sorted(path.name for path in folder.iterdir()) == ["run.toml", "sums.jsonl"]


@pytest.mark.slow
def test_a_model_that_is_not_here_is_rehearsed_with_its_shape(folder: Path) -> None:
    (folder / "run.toml").write_text(
        SPEC.replace('"tiny-qwen3", init = "random"', '"HuggingFaceTB/SmolLM2-135M"')
        .replace("max_answer = 240", "max_answer = 8")
        .replace("cap = 65536", "cap = 24")
        + "[lora]\nrank = 4\n"
    )
    done = headway("run.toml", "--json")
    assert done.returncode == 0, done.stderr
    assert "byte-level tokenizer" in json.loads(done.stdout)["notes"][0]


@pytest.mark.slow
def test_a_calibrated_machine_plans_its_process_closer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    words = ("run.toml", "--json", "--set", "rollout.max_answer=20")
    first = headway(*words, "--calibrate")
    assert first.returncode == 0, first.stderr
    assert "calibrated: the process holds" in first.stderr
    assert "its allocator" in first.stderr
    ((record,),) = (
        kept.values() for kept in json.loads((folder / "cache/headway/calibration.json").read_text()).values()
    )
    assert 0 <= record["overhead"]["holes"] < 16 << 20
    second = headway(*words)
    found = [json.loads(done.stdout)["phases"] for done in (first, second)]
    off = [sum(abs(row["predicted_bytes"] - row["measured_bytes"]) for row in rows) for rows in found]
    assert off[1] <= off[0] + 6 * (4 << 20)  # two rehearsals differ by a few MiB a phase
    lines = subprocess.run(
        [sys.executable, "-m", "headway", "plan", "run.toml", "--json"], capture_output=True, text=True, check=True
    )
    found = [line for line in json.loads(lines.stdout)["lines"] if "calibrated on this machine" in line["source"]]
    assert {line["item"] for line in found} == {"process", "fragmentation"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("missing.toml",), "missing.toml"),
        (("run.toml", "--run"), "leave --run out"),
        (("run.toml", "--out", "."), "name a folder that is new or empty"),
        (("run.toml", "--set", "train.lrr=1"), "train.lr"),
        (("run.toml", "--set", "rollout.prompts=500"), "there are only"),
        (("qwen3-4B",), "only a RunSpec"),
        (("run.toml", "--own-weights", "--calibrate"), "with random weights"),
    ],
)
def test_bad_input(folder: Path, words: tuple[str, ...], says: str) -> None:
    done = headway(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
