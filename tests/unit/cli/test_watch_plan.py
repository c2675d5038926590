"""What `headway watch` knows of a run before it starts: the plan, made in a process of its own."""

import json
import os
import signal
from pathlib import Path

import msgspec
import pytest

from headway.cli import watch_plan
from headway.cli.inputs import read_case
from headway.cli.watch_plan import Plan, Planner, Request, may_be_launch, planned, run_of, verdict_line
from headway.config.load import dump, load
from headway.guard.boxplan import BoxPlan, PlannedLimit, PlannedPool, Worst, plan_of
from headway.plan.planned import examine
from headway.reports.page.compare import ledger_of, plan_in

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "tests" / "data" / "scripts"
ARRAYS = ("bash", str(SCRIPTS / "slime-arrays.sh"))


@pytest.mark.parametrize(
    ("command", "may"),
    [
        ("true", False),
        ("sleep 5", False),
        ("/usr/bin/env true", False),
        ("bash run.sh", True),
        ("./run.sh --fast", True),
        ("python3 train.py --lr 1", True),
        ("torchrun -m verl.trainer.main_ppo", True),
        ("python3 -c train.py", False),
        ("headway train run.toml", True),
        ("trl grpo --config x.yaml", True),
    ],
)
def test_only_what_may_be_a_launch_is_read(command, may):
    assert may_be_launch(command.split()) is may


def test_a_script_is_known_by_how_it_begins(tmp_path):
    (tmp_path / "run").write_text("#!/bin/bash\npython3 x\n")
    assert may_be_launch([str(tmp_path / "run")])
    assert not may_be_launch([])


@pytest.mark.parametrize(
    ("command", "run"),
    [
        ("headway train run.toml", ("run.toml", ())),
        ("/opt/bin/headway train --set=a.b=1 --force run.toml --set c.d=2", ("run.toml", ("a.b=1", "c.d=2"))),
        ("python3 -m headway train run.toml --on-limit resume --tries 3", ("run.toml", ())),
        ("headway plan run.toml", None),
        ("headway train", None),
        ("headway", None),
        ("python3 -m headway", None),
    ],
)
def test_a_run_of_headway_itself_is_known(command, run):
    assert run_of(command.split()) == run


def test_the_plan_is_the_one_of_headway_plan():
    made = planned(Request(ARRAYS, "8xh100-80", ()))
    case = read_case(ARRAYS, None, "8xh100-80", ())
    assert ledger_of(plan_in(made.ledger)) == examine(case.workload, case.machine).ledger
    assert made.says.startswith("planned on 8xh100-80: fits: node[0].device[0] 63.83 GiB at most of 79.11 GiB")
    assert (made.why_not, made.launch) == ("", True)
    spec = json.loads(made.spec)
    assert (spec["settings"]["tp"], spec["settings"]["save_interval"]) == (2, 20)
    assert any("reference model" in note["text"] for note in spec["lint"])


def test_what_does_not_fit_is_said_with_the_command_that_tells_more():
    command = ("bash", str(SCRIPTS / "slime-step-75.sh"))
    made = planned(Request(command, "8xh100-80", ("qwen3-30B-A3B", "host.bytes=1600e9")))
    plan = plan_of(made.ledger)
    assert plan is not None
    assert plan.verdict == "does not fit"
    assert "does not fit: node[0].device[0] 132.70 GiB expected of 79.11 GiB (device memory), phase step" in made.says
    more = f"headway plan --model qwen3-30B-A3B --machine 8xh100-80 --set host.bytes=1600e9 -- {' '.join(command)}"
    assert made.says.endswith(f"; it is started all the same; {more} tells more")


def test_what_the_launch_leaves_open_is_asked_for_and_what_was_read_is_kept():
    made = planned(Request(("bash", str(SCRIPTS / "slime-missing-model.sh")), "b200x8", ()))
    assert made.launch
    assert made.why_not.startswith("not planned: Dense-4B: no such model in the table")
    assert "pass --model NAME" in made.why_not
    assert "\n" not in made.why_not
    assert json.loads(made.spec)["settings"]["rollout_batch"] == 8


@pytest.mark.parametrize(
    ("command", "given", "launch", "why"),
    [
        (("bash", "-c", "train=1"), (), False, "no trainer that is known is started in it"),
        (("bash", "missing.sh"), (), False, "missing.sh: no such file"),
        (("bash", "missing.sh"), ("qwen3-4B",), True, "missing.sh: no such file"),
        (("sleep", "5"), ("qwen3-4B",), True, "it starts no Python program"),
        (("train",), (), False, "no launch script and no command that is known"),
        (ARRAYS, ("no.such.key=1",), True, "no.such.key"),
        (("headway", "train", "missing.toml"), (), True, "missing.toml"),
    ],
)
def test_why_there_is_no_plan(command, given, launch, why):
    made = planned(Request(command, "8xh100-80" if given else None, given))
    assert (made.ledger, made.says, made.launch) == ("", "", launch)
    assert made.why_not.startswith("not planned: ")
    assert why in made.why_not
    assert "name the model and its trainer instead" not in made.why_not


def test_a_run_of_headway_itself_is_planned_with_its_settings():
    run = ROOT / "configs" / "demo.toml"
    command = ("headway", "train", str(run), "--set", "train.steps=7")
    made = planned(Request(command, "gb10", ()))
    assert made.spec == dump(load(run, ["train.steps=7"]))
    assert made.says.startswith("planned on gb10: fits: node[0].unified ")


def test_the_pool_that_is_named_has_the_verdict():
    def pool(name: str, verdict: str, upper: int) -> PlannedPool:
        return PlannedPool(name, verdict, 50, upper, Worst("train", 2), (PlannedLimit("memory", 100),))

    pools = (pool("a", "tight", 300), pool("b", "does not fit", 200), pool("c", "does not fit", 150))
    plan = BoxPlan("does not fit", "gb10", pools)
    assert plan.tightest == pools[1]
    assert verdict_line(msgspec.json.encode(plan).decode(), "more").startswith(
        "planned on gb10: does not fit: b 50 B expected of 100 B (memory), phase train; it is started all the same; "
    )
    unknown = msgspec.json.encode(
        BoxPlan("cannot tell", "gb10", (), deciding=("rollout.max_answer = 64 (nobody said)",))
    ).decode()
    assert verdict_line(unknown, "headway plan x") == (
        "planned on gb10: cannot tell: nobody said rollout.max_answer, which decides; --set it; headway plan x tells "
        "more"
    )
    assert BoxPlan("cannot tell", "gb10", ()).tightest is None


def test_a_plan_that_is_too_large_is_left_out_and_that_is_said(monkeypatch):
    monkeypatch.setattr("headway.guard.boxplan.LEDGER_BYTES", 1000)
    made = planned(Request(ARRAYS, "8xh100-80", ()))
    assert (made.ledger, made.says[:7]) == ("", "planned")
    assert "too large for the black box" in made.why_not


class TestProcess:
    """The planning is a process that executes nothing of the command and of the folder it runs in."""

    def test_it_answers_as_the_function_does(self):
        with Planner(ARRAYS, "8xh100-80") as planner:
            assert planner.result() is None
            assert planner.result(60.0) == planned(Request(ARRAYS, "8xh100-80", ()))

    def test_a_command_that_is_no_launch_starts_none(self):
        with Planner(("sleep", "5")) as planner:
            assert planner._process is None
            assert planner.result() == Plan()

    def test_nothing_is_executed(self, tmp_path, monkeypatch):
        script = (SCRIPTS / "slime-nested.sh").read_text()
        (tmp_path / "run.sh").write_text(f"touch {tmp_path}/ran\nX=$(touch {tmp_path}/ran)\n{script}")
        for name in ("msgspec", "json", "subprocess", "resource"):
            (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(9)\n")
        monkeypatch.chdir(tmp_path)
        with Planner(("bash", "run.sh"), "8xh100-80", ("qwen3-4B",)) as planner:
            found = planner.result(60.0)
        assert found is not None
        assert found.launch
        assert not (tmp_path / "ran").exists()

    def test_one_that_takes_too_long_is_ended(self, monkeypatch):
        with Planner(ARRAYS, "8xh100-80") as planner:
            assert planner._process is not None
            planner._process.send_signal(signal.SIGSTOP)
            assert planner.result() is None
            monkeypatch.setattr(watch_plan, "LIFE_S", 0)
            found = planner.result()
        assert found == Plan(why_not="not planned: the planning ended with code -9 and without an answer")

    def test_it_is_gone_when_it_is_no_longer_needed(self):
        with Planner(ARRAYS, "8xh100-80") as planner:
            assert planner._process is not None
            pid = planner._process.pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_model_and_settings_are_told_apart():
    request = Request(("bash", "run.sh"), None, ("./lr=1/model", "a.b=1"))
    assert (request.model, request.settings) == ("./lr=1/model", ("a.b=1",))


def test_words_that_are_no_utf8_are_read_too():
    with Planner(("bash", "\udcff.sh"), None, ("qwen3-4B",)) as planner:
        found = planner.result(60.0)
    assert found is not None
    assert found.why_not == "not planned: \ufffd.sh: no such file"
