"""The two public deaths that started the project: what the doctor must say of them, and must not."""

from pathlib import Path

import pytest

from headway.diagnose.compare import compare
from headway.diagnose.doctor import diagnose
from headway.diagnose.run_facts import due, from_script, resume
from headway.diagnose.settings import Settings
from headway.diagnose.sources import sources_of

from .told import diagnosis

DATA = Path(__file__).parents[2] / "data"
SEEDS = DATA / "deaths" / "seeds"
FIRST, SECOND, STEP_75 = (SEEDS / f"{name}.log" for name in ("gb10-first", "gb10-second", "step-75"))


def told(*logs: Path, settings: Settings | None = None):
    return diagnose(sources_of([str(log) for log in logs], [], live=False), settings)


class TestTheKillOnUnifiedMemory:
    @pytest.fixture
    def found(self):
        return told(FIRST)

    def test_names_and_grades(self, found):
        answer = found.answer
        assert (answer.mechanism, answer.mechanism_grade) == ("ray-memory-monitor", "proven")
        assert (answer.cause, answer.cause_grade, answer.family) == (
            "unified-memory-full",
            "supported",
            "unified-memory",
        )
        assert found.exit_code == 0

    def test_the_node_is_named_with_its_numbers(self, found):
        assert "the node, not a GPU, held 115.86 GiB of 121.69 GiB (95.2 %" in found.sentence

    def test_unified_memory_is_supported_by_the_gap(self, found):
        assert "75.03 GiB of 115.86 GiB are in no process" in found.answer.because

    def test_who_held_what(self, found):
        text = "\n".join(found.context)
        assert "ray::FSDPTrainRayActor.train (pid 2657): 36.77 GiB" in text
        assert "in no listed process: 75.03 GiB; free: 5.83 GiB" in text

    def test_a_refused_request_on_the_device_is_ruled_out(self, found):
        ruled = {each.name: each.because for each in found.answer.ruled_out}
        assert "no CUDA out-of-memory error" in ruled["device-allocation-failure"]

    def test_raising_the_threshold_is_advised_against(self, found):
        (advice,) = (each for each in found.answer.advice if "RAY_memory_usage_threshold" in each.text)
        assert advice.text.startswith("do not raise")
        assert "without a message of Ray" in advice.effect

    def test_the_same_text_on_a_machine_with_devices_of_its_own_is_not_unified(self):
        text = FIRST.read_text().replace("121.69GB", "251.54GB").replace("115.86GB", "239.00GB")
        assert diagnosis(text).answer.cause != "unified-memory-full"

    def test_the_second_attempt_changed_nothing_that_helps(self):
        sources = sources_of([], [str(FIRST), str(SECOND)], live=False)
        found = diagnose(sources)
        text = "\n".join(compare(found.findings))
        assert "attempts 1 and 2 ended alike: ray-memory-monitor" in text
        assert "node use 115.86 GiB, then 119.18 GiB of 121.69 GiB" in text
        assert "FSDPTrainRayActor.train: 36.77 GiB, then 36.75 GiB (unchanged within 1 %)" in text
        assert "made no room" in text


class TestTheSigtermAtStep75:
    @pytest.fixture
    def found(self):
        return told(STEP_75)

    def test_names_and_grades(self, found):
        answer = found.answer
        assert (answer.mechanism, answer.mechanism_grade) == ("sigterm", "proven")
        assert (answer.cause, answer.cause_grade, answer.step) == ("not-established", "open", 75)
        assert found.exit_code == 4

    def test_a_memory_kill_is_ruled_out_by_the_signal(self, found):
        ruled = {each.name: each.because for each in found.answer.ruled_out}
        (because,) = (text for name, text in ruled.items() if name.startswith("a memory-limit kill"))
        assert because == "a memory-limit kill is SIGKILL and cannot print it"
        assert "every non-zero exit inside Kubernetes" in ruled["K8s pod memory limits"]

    def test_who_can_have_sent_it_and_what_would_settle_it(self, found):
        names = {each.name for each in found.answer.candidates}
        assert {"pod-eviction", "oom-daemon", "scheduler-cancel", "outside-signal"} <= names
        settle = {each.command.split()[0] for each in found.answer.would_settle}
        assert {"kubectl", "grep", "cat"} <= settle
        assert all(each.where and each.line for each in found.answer.would_settle)

    def test_the_sentence(self, found):
        assert "sent it SIGTERM" in found.sentence
        assert "a memory-limit kill cannot print this, an eviction could" in found.sentence
        assert found.sentence.endswith("nothing here shows which.")

    def test_what_was_due_and_where_to_go_on(self):
        settings = from_script(DATA / "scripts" / "slime-step-75.sh", 75)
        assert due(settings, 75)[0] == "evaluation (every 5) was due at step 75"
        assert "not due at step 75: the last was at 50" in due(settings, 75)[1]
        assert "that of step 50" in resume(settings, 75)[0]

    def test_the_script_s_own_risks_are_told(self):
        lints = "\n".join(from_script(DATA / "scripts" / "slime-step-75.sh", 75).lints)
        assert "pkill -9 ray" in lints
        assert "a rerun begins at step 0" in lints
