"""The page of a run of `headway train`: what is read of its folder, and what stands on the page."""

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headway.errors import InputError
from headway.facts.machine import Limit, Machine, Pool
from headway.guard.recorder import Recorder
from headway.plan.ledger import Phase
from headway.reports.page import files
from headway.reports.page.build import Run, build, read_run
from headway.reports.page.charts import chart_data
from headway.reports.page.curves import read_metrics
from headway.reports.page.ending import gain_words
from headway.reports.page.html import page_html
from headway.reports.page.recording import BOUND, GROUP, NODE, NOW, PLANNED, TREE, read_recording
from headway.reports.page.records import Band, Ceiling, Curve, Doctor, Page, PoolChart
from headway.reports.page.thin import Thinned, extremes, longest, thin

OUTPUTS = Path(__file__).parents[2] / "data" / "outputs"
GIB = 1 << 30
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028\u202e\x1b[31m\ud800"


@pytest.fixture(scope="module")
def leak() -> Page:
    return build(read_run(OUTPUTS / "leak"), made=0.0)


@pytest.fixture(scope="module")
def killed() -> Page:
    return build(read_run(OUTPUTS / "killed"), made=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the run that was killed, to be damaged."""
    return Path(shutil.copytree(OUTPUTS / "killed", tmp_path / "run"))


def curves(page: Page) -> dict[str, Curve]:
    return {curve.name: curve for curve in page.history.pools[0].curves}


def append(path: Path, *rows: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


class TestThinning:
    def test_a_spike_survives_and_the_size_is_bounded(self):
        series = Thinned[tuple[float, float]](extremes, most=100)
        for t in range(200_000):
            series.add((t, 1e9 if t == 123_456 else t % 7))
        rows = series.rows
        assert len(rows) <= 101
        assert (123_456, 1e9) in rows
        assert [t for t, _ in rows] == sorted({t for t, _ in rows})
        assert rows[-1][0] == 199_999

    def test_the_time_between_points_is_alike_in_old_and_new(self):
        series = Thinned[tuple[float, float]](extremes, most=100)
        for t in range(50_000):
            series.add((t, float(t)))
        gaps = [after[0] - before[0] for before, after in zip(series.rows, series.rows[1:], strict=False)]
        assert max(gaps) <= 8 * (50_000 / 100)

    def test_few_rows_stay_as_they_are(self):
        assert thin([(0, 1), (1, 2)], extremes, 2) == [(0, 1), (1, 2)]

    def test_bands_keep_their_ends(self):
        bands = [Band("rollout" if at % 2 else "train", at, at * 10.0, at * 10.0 + 10) for at in range(9000)]
        kept = thin(bands, longest)
        assert len(kept) <= 2000
        assert (kept[0].start, kept[-1].end) == (0.0, 90_000.0)


class TestRecording:
    def test_phases_become_bands_and_steps(self, killed):
        assert [band.phase for band in killed.history.bands[:5]] == ["load", "eval", "rollout", "train", "step"]
        tree = curves(killed)[TREE]
        assert tree.shape == "steps"
        assert tree.top == killed.history.peak == 1300410368

    def test_every_counter_has_a_curve(self, killed):
        found = curves(killed)
        assert {TREE, NOW, NODE, GROUP, PLANNED, BOUND} <= found.keys()
        assert found[PLANNED].planned
        assert found[BOUND].top > found[PLANNED].top

    def test_the_peak_of_a_phase_stands_over_the_phase(self, killed):
        band = next(band for band in killed.history.bands if band.phase == "eval")
        assert (band.start, 1300410368.0) in curves(killed)[TREE].points

    def test_where_a_killed_run_stopped(self, killed):
        last = killed.history.bands[-1]
        assert (last.phase, last.step, last.finished) == ("rollout", 5, False)
        assert "inside rollout of step 5, where 1.08 GiB were held" in killed.history.stopped

    def test_time_between_two_processes_is_left_out(self, leak):
        starts = leak.history.starts
        assert len(starts) == 2
        gap = (starts[1].unix - starts[0].unix) - (starts[1].t - starts[0].t)
        assert gap > 5
        assert starts[1].t < leak.history.seconds < 60

    def test_actions_and_forecasts_of_the_guard(self, leak):
        assert [each.name for each in leak.history.actions] == ["warn", "free", "checkpoint", "stop"]
        made = [each for each in leak.history.pools[0].forecasts if each.curve == "memory.limit"]
        assert made[0].end[1] == pytest.approx(1.5e9, rel=0.02)
        assert "grows 19.1 MiB a step" in made[-1].text
        assert {"memory.limit", "MemAvailable"} == {limit.name for limit in leak.history.pools[0].ceilings}

    def test_what_children_held_is_told_apart(self, leak):
        assert leak.history.processes.names == ("the run's process", "its children")
        highest = max(leak.history.processes.parts, key=sum)
        assert highest[1] > 10**9

    def test_a_recording_as_it_is_written(self, tmp_path):
        machine = Machine("a", (Pool("node[0].host", "host", 8 * GIB, (Limit("cgroup", GIB, "killed", ""),)),), 2)
        with Recorder(tmp_path / "recording.jsonl", machine, {Phase.TRAIN: 7}) as recorder:
            with recorder.phase(Phase.TRAIN, 1):
                held = bytearray(50 << 20)
            assert held
            running = read_recording(tmp_path / "recording.jsonl")
        assert running.held["train"]["tree"] > 50 << 20
        assert running.pools[0].ceilings[0].curve == GROUP

    def test_torn_and_foreign_lines_are_counted_and_passed_over(self, folder):
        path = folder / "recording.jsonl"
        with path.open("ab") as file:
            file.write(b'{"kind": "phase", "t": 1}\n{"kind": "read\nnull\n[1]\n\xff\xfe\n{"kind": "later"}\n')
            file.write(b'{"kind": "reading", "t": NaN, "rss": 1}\n' + b"[" * 100_000 + b"\n")
        page = build(read_run(folder))
        assert any("7 lines could not be read" in line for line in page.missing)
        assert page.history.peak == 1300410368

    def test_another_format_is_not_guessed(self, folder):
        path = folder / "recording.jsonl"
        path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
        page = build(read_run(folder))
        assert any("another format" in line for line in page.missing)
        assert "How it ended is not known" in page.ending.sentence

    def test_failed_allocations_are_listed(self, folder):
        row = {
            "kind": "failure",
            "t": 1.0,
            "step": 3,
            "phase": "train",
            "asked": GIB,
            "tokens": 512,
            "left": "2 parts",
        }
        append(folder / "recording.jsonl", row)
        (found,) = build(read_run(folder)).history.facts
        assert found == (
            "allocation failed in train of step 3",
            "1.00 GiB asked for, micro-batch of 512 tokens; 2 parts",
        )

    def test_what_was_made_smaller_is_listed(self, folder):
        row = {
            "kind": "smaller",
            "t": 1.0,
            "step": 3,
            "key": "train.cap",
            "now": 512,
            "set": 4096,
            "reason": "the guard",
        }
        append(folder / "recording.jsonl", row)
        (found,) = build(read_run(folder)).history.facts
        assert found == ("train.cap is smaller from step 3 on", "512 instead of 4,096: the guard")

    def test_a_long_recording_stays_small(self, tmp_path):
        lines = (OUTPUTS / "killed" / "recording.jsonl").read_text().splitlines()
        row = json.loads(next(line for line in lines if '"kind": "phase"' in line))
        with (tmp_path / "recording.jsonl").open("w") as file:
            file.write(lines[0] + "\n")
            for step in range(8_000):
                peak = GIB + (5 * GIB if step == 7777 else step)
                new = row | {"t": row["t"] + 10 * step, "step": step, "rss_peak": peak, "tree_peak": peak}
                file.write(json.dumps(new) + "\n")
        history = read_recording(tmp_path / "recording.jsonl")
        assert history.pools[0].curves[0].top == 6 * GIB
        assert max(len(curve.points) for curve in history.pools[0].curves) <= 2001
        assert len(history.bands) <= 2000


class TestEnding:
    def test_finished(self, leak):
        assert (leak.ending.word, leak.ending.bad) == ("finished", False)
        assert "60 steps" in leak.ending.sentence
        assert "memory.limit (1.40 GiB), 99.6% was used" in leak.ending.sentence
        assert "The guard acted (warn, free, checkpoint, stop). The run began again once." in leak.ending.sentence

    def test_killed(self, killed):
        assert (killed.ending.word, killed.ending.bad) == ("broke off", True)
        assert "The recording stops inside rollout of step 5" in killed.ending.sentence
        assert killed.missing == ("summary.json: missing (how the run ended; a run that was killed leaves none)",)

    def test_a_doctor_who_knows_is_heard_first(self):
        doctor = Doctor({"sentence": "The kernel killed it", "mechanism_grade": "proven"})
        assert (
            read_run(OUTPUTS / "killed")
            .ending(doctor)
            .sentence.startswith("The kernel killed it. The recording stops")
        )

    def test_running(self):
        ending = read_run(OUTPUTS / "killed", running=True).ending()
        assert (ending.word, ending.bad) == ("running", False)

    def test_stopped_by_a_signal(self, folder):
        (folder / "summary.json").write_text(json.dumps({"steps": 4, "exit_reason": "SIGTERM"}))
        ending = build(read_run(folder)).ending
        assert (ending.word, ending.bad) == ("stopped", True)
        assert "Stopped by SIGTERM after 4 steps" in ending.sentence
        (folder / "summary.json").write_text(json.dumps({"steps": 4, "exit_reason": "guard"}))
        ending = build(read_run(folder)).ending
        assert (ending.word, ending.bad) == ("stopped", False)
        assert "Stopped by the guard" in ending.sentence

    def test_an_exception(self, folder):
        lines = (folder / "recording.jsonl").read_text().splitlines()[:-1]
        lines[-1] = lines[-1].replace('"ended": "ok"', '"ended": "MemoryError"')
        (folder / "recording.jsonl").write_text("\n".join(lines) + "\n")
        ending = build(read_run(folder)).ending
        assert ending.word == "failed"
        assert "Step of step 4 was left by MemoryError" in ending.sentence

    def test_the_summary_of_an_earlier_process_does_not_count(self, folder):
        summary = folder / "summary.json"
        summary.write_text(json.dumps({"steps": 4, "exit_reason": "finished"}))
        os.utime(summary, (1.0, 1.0))
        page = build(read_run(folder))
        assert page.ending.word == "broke off"
        assert any("earlier process" in line for line in page.missing)


class TestComparison:
    def test_predicted_measured_and_bound_of_each_phase(self, killed):
        (compared,) = killed.comparisons
        rows = {row.phase: row for row in compared.rows}
        assert rows["eval"].measured == 1300410368
        assert rows["save"].measured is None
        assert sum(part.bytes for part in rows["eval"].items) == rows["eval"].predicted < rows["eval"].upper
        assert sum(part.bytes for part in rows["eval"].held) == rows["eval"].measured

    def test_it_is_what_the_summary_says(self):
        run = read_run(OUTPUTS / "leak")
        rows = {row.phase: row for row in build(run).comparisons[0].rows}
        assert run.summary is not None
        for phase, told in run.summary["phases"].items():
            assert (rows[phase].predicted, rows[phase].upper) == (told["predicted_bytes"], told["upper_bytes"])

    def test_a_plan_that_is_none_is_told(self, folder):
        (folder / "plan.json").write_text('{"lines": [{"pool": 3}]}')
        page = build(read_run(folder))
        assert page.comparisons == ()
        assert any(line.startswith("plan.json: it has no lines") for line in page.missing)


class TestMetrics:
    def test_charts(self, leak):
        charts = {chart.title: chart for chart in leak.metrics}
        assert {"Reward", "Answer length", "Throughput", "Time of a step"} <= charts.keys()
        assert [curve.shape for curve in charts["Reward"].curves][-1] == "points"
        assert charts["Reward"].curves[0].points[-1][0] == 60

    def test_what_is_no_number_is_left_out(self):
        rows = [
            {"step": 1.0, "reward": float("nan"), "kl": 0.0},
            {"step": 2.0, "reward": "0.5", "answer_tokens": float("inf")},
            {"step": 3.0, "reward": 0.25, "kl": 0.0, "answer_tokens": 10**400},
            None,
            {"reward": 1.0},
        ]
        found = read_metrics(rows, [])
        assert [chart.title for chart in found.charts] == ["Reward"]
        assert found.charts[0].curves[0].points == ((3.0, 0.25),)
        assert (found.bad, found.steps) == (2, 3)


class TestSamples:
    def test_a_sample_stands_beside_its_problem(self, folder):
        new = {
            "step": 61,
            "phase": "rollout",
            "prompt": "2 + 2 = <b>",
            "label": "4",
            "response": "22",
            "finish": "stop",
        }
        failed = new | {"response": "?", "reward": None, "failure": "exception: ValueError: no (mine.py:3)"}
        append(folder / "rollouts.jsonl", new | {"reward": -1.5, "failure": None}, failed)
        page = build(read_run(folder))
        shown = [(each.prompt, each.label, each.text, each.reward, each.failure) for each in page.samples[-2:]]
        assert shown == [
            ("2 + 2 = <b>", "4", "22", -1.5, ""),
            ("2 + 2 = <b>", "4", "?", None, "exception: ValueError: no (mine.py:3)"),
        ]
        assert "2 + 2 = &lt;b&gt;" in page_html(page)

    def test_samples_of_older_versions_have_no_problem(self, folder):
        old = {"step": 61, "phase": "rollout", "prompt": 7, "text": "so 4", "reward": 1.0, "finish": "stop"}
        append(folder / "rollouts.jsonl", old)
        last = build(read_run(folder)).samples[-1]
        assert (last.prompt, last.label, last.text) == ("", "", "so 4")

    def test_a_held_out_reward_is_no_percentage(self):
        before, after = {"step": 0, "reward": -0.4}, {"step": 9, "reward": 1.2}
        assert "mean reward: -0.400 before, 1.200 after" in gain_words(read_metrics([], [before, after]))
        right = [row | {"reward": 0.25, "correct": 0.25} for row in (before, after)]
        assert "correct: 25.0% before, 25.0% after" in gain_words(read_metrics([], right))


class TestFolder:
    @pytest.mark.parametrize("name", ["recording.jsonl", "plan.json", "metrics.jsonl"])
    def test_what_is_missing_is_told(self, folder, name):
        (folder / name).unlink()
        page = build(read_run(folder))
        assert any(line.startswith(f"{name}: missing") for line in page.missing)
        assert name in page_html(page)

    def test_a_runspec_alone_makes_a_page(self, tmp_path):
        (tmp_path / "runspec.toml").write_text("")
        page = build(read_run(tmp_path))
        assert page.ending.word == "unknown"
        assert len(page.missing) == 4
        assert "<h1>" in page_html(page)

    def test_empty_and_broken_files_make_a_page(self, folder):
        for name in ("recording.jsonl", "plan.json", "metrics.jsonl", "rollouts.jsonl"):
            (folder / name).write_bytes(b"\x00\xff{\n[")
        page = build(read_run(folder))
        assert "<h1>" in page_html(page)
        assert any(line.startswith("recording.jsonl") for line in page.missing)

    def test_what_is_no_run_is_refused(self, tmp_path):
        (tmp_path / "notes.txt").write_text("")
        with pytest.raises(InputError, match="no output directory of headway"):
            read_run(tmp_path)
        with pytest.raises(InputError, match="it is a file"):
            read_run(tmp_path / "notes.txt")
        with pytest.raises(InputError, match="no such directory"):
            read_run(tmp_path / "nowhere")

    def test_lines_of_any_length_are_passed_over(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_bytes(b"x" * 100 + b"\n" + b'{"step": 1}\n' + b"y" * 100)
        assert [*files.lines(path, 50)] == [b'{"step": 1}\n']

    def test_both_ends_of_a_large_file(self, tmp_path):
        path = tmp_path / "a.jsonl"
        append(path, *({"step": at, "pad": "x" * 50} for at in range(1000)))
        steps = [row["step"] for row in files.both_ends(path, 1000)]
        assert steps[0] == 0
        assert steps[-1] == 999
        assert len(steps) < 40
        assert [row["step"] for row in files.both_ends(path)] == [*range(1000)]


class Parsed(HTMLParser):
    """The elements of a page, and what its scripts hold."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._inside = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def data_of(page: str) -> dict[str, Any]:
    """The JSON that the page hands to its charts."""
    return dict(json.loads(Parsed(page).scripts[1]))


class TestPage:
    def test_every_chart_has_a_place_and_its_numbers(self, leak):
        page = page_html(leak)
        places = [attributes["data-chart"] for tag, attributes in Parsed(page).tags if "data-chart" in attributes]
        assert sorted(places) == sorted(data_of(page)["charts"])
        for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
            assert "<details><summary>Numbers" in figure

    def test_the_numbers_that_matter_are_text(self, leak):
        page = page_html(leak)
        for text in ("predicted", "upper bound", "limit", "1.39 GiB", "metrics.jsonl", "The guard acted", "0:31."):
            assert text in page

    def test_it_needs_nothing_else(self, leak):
        page = page_html(leak)
        for tag, attributes in Parsed(page).tags:
            assert tag not in ("link", "iframe", "object", "embed", "base")
            assert "src" not in attributes
            assert not str(attributes.get("href", "./")).startswith(("http", "//"))
        assert "default-src 'none'" in page
        assert len(page.encode(errors="replace")) < 2 << 20

    def test_text_of_logs_and_models_is_no_markup(self, folder):
        (folder / f"{'<img src=x onerror=alert(3)>'}.txt").write_text("")
        text = json.dumps({"step": 1, "phase": "rollout", "text": EVIL, "finish": EVIL, "reward": 1.0})
        (folder / "rollouts.jsonl").write_text(text + "\n")
        lines = (folder / "recording.jsonl").read_text().splitlines()
        header = json.loads(lines[0])
        header["machine"]["name"] = EVIL
        header["machine"]["pools"][0] |= {"name": f"node[0].host{EVIL}"}
        header["machine"]["pools"][0]["limits"][0] |= {"name": EVIL, "consequence": EVIL}
        lines[0] = json.dumps(header)
        lines[-1] = json.dumps(json.loads(lines[-1]) | {"phase": EVIL})
        (folder / "recording.jsonl").write_text("\n".join(lines) + "\n")
        doctor = Doctor(
            {
                **dict.fromkeys(("sentence", "mechanism", "mechanism_grade", "cause", "cause_grade"), EVIL),
                "evidence": [{"file": EVIL, "line": 1, "text": EVIL}],
                "remedies": [{"text": EVIL, "effect": EVIL, "risk": EVIL}],
                "ruled_out": [{"name": EVIL, "because": EVIL}],
                "candidates": [{"name": EVIL, "because": EVIL}],
                "would_settle": [{"command": EVIL, "where": EVIL, "line": EVIL}],
            }
        )
        page = page_html(build(read_run(folder), doctor), links=True)
        parsed = Parsed(page)
        assert len(parsed.scripts) == 3
        assert not [tag for tag, _ in parsed.tags if tag == "img"]
        assert not [each for _, each in parsed.tags if any(name.startswith("on") for name in each)]
        assert page.count("alert(1)") > 10
        rest = page.replace(parsed.scripts[0], "")
        assert not re.search("[\x00-\x08\x0e-\x1f\u2028\u202e\ud800-\udfff]", rest)
        assert any(EVIL[:20] in name for name, *_ in data_of(page)["axis"]["bands"])

    def test_a_long_answer_is_cut(self, folder):
        row = {"step": 1, "phase": "rollout", "text": "x" * 100_000, "finish": "length", "reward": 0.0}
        (folder / "rollouts.jsonl").write_text(json.dumps(row) + "\n")
        page = page_html(build(read_run(folder)))
        assert "98,800 more characters" in page
        assert "x" * 1300 not in page

    def test_links_only_beside_the_run(self, leak):
        assert 'href="./metrics.jsonl"' in page_html(leak, links=True)
        assert "href=" not in page_html(leak).split("</style>")[1].split("<script>")[0]

    def test_the_policy_names_the_scripts_that_run(self, leak):
        page = page_html(leak)
        policy = next(each["content"] for tag, each in Parsed(page).tags if "http-equiv" in each)
        assert str(policy).count("'sha256-") == 2
        assert "unsafe-inline'; img" in str(policy)
        assert "unsafe" not in str(policy).split("style-src")[0]

    def test_json_of_the_page_is_bounded_and_whole(self, leak):
        data = chart_data(leak)
        assert len(json.dumps(data)) < 1 << 20
        assert data["axis"]["end"] == leak.history.seconds

    def test_a_quiet_disk_gets_a_sentence(self, killed):
        disk = PoolChart(
            "disk:/data", "Disk of /data", (Curve("used", ((0.0, 50.0 * GIB), (9.0, 50.0 * GIB))),),
            (Ceiling("disk", 100 * GIB, ""),),
        )  # fmt: skip
        page = replace(killed, history=replace(killed.history, pools=(*killed.history.pools, disk)))
        assert "Disk of /data: at most 50.00 GiB of 100.00 GiB." in page_html(page)


def test_a_run_knows_its_folder():
    run = read_run(OUTPUTS / "leak")
    assert isinstance(run, Run)
    assert build(run).title == "leak"
