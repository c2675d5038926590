"""Deaths that were recorded on a real Ray: each is named right, also when files, process ids and paths are others."""

import json
import random
import re
from pathlib import Path

import pytest

from headway.diagnose.causes import NOT_ESTABLISHED
from headway.diagnose.doctor import diagnose
from headway.diagnose.finding import Diagnosis, Finding
from headway.diagnose.sources import sources_of

DEATHS = Path(__file__).parents[2] / "data" / "deaths"
TRUTH = [json.loads(line) for line in (DEATHS / "truth.jsonl").read_text().splitlines()]
PID = re.compile(r"(?<![\w./,-])\d{4,7}(?![\w.,:])|(?<=pid[= ])\d+|(?<=pid: )\d+")


def rewritten(folder: Path, target: Path, seed: int) -> list[str]:
    """The recording with files of other names in another order, and other pids, users and paths in their text."""
    dice = random.Random(seed)
    pids: dict[str, str] = {}
    made = []
    for file in sorted(folder.iterdir()):
        text = PID.sub(lambda at: pids.setdefault(at[0], str(dice.randrange(1000, 4_000_000))), file.read_text())
        text = re.sub(r"/home/\w+/exp\d+/", "/data/jobs/a/", re.sub(r"/opt/\w+/lib", "/venvs/x/lib", text))
        name = target / f"{dice.randrange(1 << 30):x}.txt"
        name.write_text(text)
        made.append(str(name))
    dice.shuffle(made)
    return made


def wrong(row: dict, found: Diagnosis) -> list[str]:
    """What is false in an answer about a recording; empty where it is right."""
    answer = found.answer
    said = f"{answer.mechanism} ({answer.mechanism_grade}), {answer.cause} ({answer.cause_grade})"
    problems = []
    if answer.mechanism not in row["mechanism"]:
        problems.append(f"mechanism: {said}, not {row['mechanism']}")
    claimed = answer.cause != NOT_ESTABLISHED and answer.cause_grade != "open"
    if claimed and answer.cause not in row["accept_causes"]:
        problems.append(f"cause: {said}, not {row['accept_causes']}")
    if not claimed and NOT_ESTABLISHED not in row["accept_causes"]:
        problems.append(f"cause: {said}, though the text shows {row['accept_causes']}")
    for finding in found.findings:
        for name, grade in ((finding.mechanism, finding.mechanism_grade), (finding.cause, finding.cause_grade)):
            if grade == "proven" and name in row["must_not_claim"]:
                problems.append(f"{name} is called proven")
    return problems


@pytest.mark.parametrize("row", TRUTH, ids=[row["path"] for row in TRUTH])
class TestRecorded:
    def test_the_whole_recording(self, row):
        assert not wrong(row, diagnose(sources_of([str(DEATHS / row["path"])], [], live=False)))

    @pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_under_other_names_in_another_order(self, row, seed, tmp_path):
        files = rewritten(DEATHS / row["path"], tmp_path, seed)
        assert not wrong(row, diagnose(sources_of(files, [], live=False)))

    def test_the_driver_alone_proves_nothing_false(self, row):
        found = diagnose(sources_of([str(DEATHS / row["path"] / "driver.log")], [], live=False))
        proven = {each.mechanism for each in found.findings if each.mechanism_grade == "proven"}
        proven |= {each.cause for each in found.findings if each.cause_grade == "proven"}
        assert not proven & set(row["must_not_claim"])


def test_the_recordings_hold_no_label_and_are_small():
    files = [file for row in TRUTH for file in (DEATHS / row["path"]).iterdir()]
    assert sum(file.stat().st_size for file in files) < 1_500_000
    for row in TRUTH:
        folder = DEATHS / row["path"]
        assert sum(file.stat().st_size for file in folder.iterdir()) < 60_000
        for file in folder.iterdir():
            assert "-" not in row["what"] or row["what"] not in file.read_text() + file.name


def test_there_are_many_on_two_versions():
    assert len(TRUTH) >= 30
    assert {row["ray"].rsplit(".", 1)[0] for row in TRUTH} >= {"2.49", "2.60"}


def answer_of(name: str) -> Finding:
    (folder,) = DEATHS.glob(f"ray-*/{name}")
    return diagnose(sources_of([str(folder)], [], live=False)).answer


@pytest.mark.parametrize(("name", "step"), [("288", 5), ("781", 3), ("710", 6), ("974", 6)])
def test_a_step_is_no_process_id_and_none_that_a_plan_names(name: str, step: int) -> None:
    """Ray's table has process ids below `ray::Trainer.rollout`; a plan says "from step 1000"."""
    assert answer_of(name).step == step


@pytest.mark.parametrize(
    ("name", "message"), [("568", "KeyError: 'advantages'"), ("390", "[Errno 24] Too many open")]
)
def test_an_exception_in_a_task_is_told_by_its_own_last_line(name: str, message: str) -> None:
    assert message in answer_of(name).sentence


@pytest.mark.parametrize(("name", "whom"), [("299", "the node's raylet"), ("887", "this process")])
def test_whom_a_sigterm_reached(name: str, whom: str) -> None:
    assert answer_of(name).sentence.startswith(f"Something outside {whom} sent it SIGTERM")


def test_an_exception_of_a_process_that_is_ending_is_no_reason() -> None:
    """The worker was killed; its driver then met "can't register atexit after shutdown"."""
    assert answer_of("918").mechanism == "sigkill-class"


def test_a_kill_that_only_the_kernel_tells_of_has_its_process_and_the_step_of_the_other_logs() -> None:
    answer = answer_of("978")
    assert (answer.process, answer.component, answer.step) == ("ray::Trainer.up pid 8650", "trainer", 3)


@pytest.mark.parametrize(
    ("name", "component"), [("710", "trainer"), ("288", "rollout"), ("956", "trainer"), ("974", "trainer")]
)
def test_the_component_is_that_of_the_process_that_ray_killed_not_of_the_largest(name: str, component: str) -> None:
    """In 956 a reward process that Ray did not kill is at the head of its list."""
    assert answer_of(name).component == component
