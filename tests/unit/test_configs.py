"""The RunSpecs in configs/ load, and what they refer to is there."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from headway.config.load import dump, load
from headway.config.source import resolve
from headway.config.workload import to_workload
from headway.plan.plan import plan
from headway.units import GIB

CONFIGS = Path(__file__).parents[2] / "configs"
RUNS = sorted(CONFIGS.glob("*.toml"))


def module(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_runspec_loads_and_its_dump_too(path, tmp_path):
    spec = load(path)
    written = tmp_path / "dumped.toml"
    written.write_text(dump(spec))
    assert load(written) == spec


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_runspec_is_planned_and_small_enough_for_a_laptop(path):
    ledger = plan(to_workload(spec := load(path), resolve(spec.model)))
    assert 0.5 * GIB < ledger.peak("node[0].host").bytes < ledger.upper("node[0].host") < 8 * GIB


def test_the_promised_runspecs_are_there():
    assert {path.stem for path in RUNS} >= {"demo", "grpo-lora", "grpo-full", "custom-reward", "jsonl"}


def test_the_word_problems_are_what_their_script_makes():
    made = module(CONFIGS / "data" / "make_word_problems.py").files()
    assert made == {path.name: path.read_text() for path in (CONFIGS / "data").glob("word_problems*.jsonl")}


def test_the_demos_words_are_what_their_script_makes():
    path = CONFIGS / "data" / "second_word.jsonl"
    assert module(CONFIGS / "data" / "make_second_word.py").text() == path.read_text()


def test_the_demos_problems_are_distinct_and_right():
    rows = [json.loads(line) for line in (CONFIGS / "data" / "second_word.jsonl").read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == len(rows) >= 2256
    assert all(row["label"] == row["prompt"].split()[2] for row in rows)
    shown = load(CONFIGS / "demo.toml").data.template.splitlines()[0].split(" =")[0]
    assert shown not in {row["prompt"] for row in rows}


def test_no_word_problem_is_in_both_files():
    spec = load(CONFIGS / "jsonl.toml")
    texts = [
        [json.loads(line)["prompt"][0]["content"] for line in file.read_text().splitlines()]
        for file in (spec.data.file, spec.eval.file)
    ]
    assert [len(set(part)) for part in texts] == [200, 50]
    assert not set(texts[0]) & set(texts[1])


def test_the_reward_example_is_found_in_its_folder_and_is_highest_for_the_right_answer():
    reward = load(CONFIGS / "custom-reward.toml").reward
    name, function = reward.function.split(":")
    assert name not in sys.modules
    close = getattr(module(reward.folder / f"{name}.py"), function)
    scores = [close("12 + 7 =", answer, "19", f"It is {answer}.") for answer in ("19", "18", "30", "-40", "many")]
    assert scores == sorted(scores, reverse=True)
    assert (scores[0], scores[-1]) == (1.0, 0.0)
    assert 0 < scores[2] < scores[1] < 1
