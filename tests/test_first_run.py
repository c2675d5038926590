"""docs/first-run.md, done as it says: its files as they are, with one short step."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/first-run.md").read_text()
BLOCK = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.S)
SHORT = ("train.steps=1", "rollout.prompts=2", "rollout.samples=2", "rollout.max_answer=4", "eval.problems=2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in BLOCK.findall(PAGE):
        (tmp_path / name).write_text(text)
    subprocess.run([sys.executable, "make_orders.py"], cwd=tmp_path, check=True)
    return tmp_path


def headway(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "headway", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=240).stdout


def test_the_page_from_data_to_a_model_in_use(folder: Path) -> None:
    assert len((folder / "orders.jsonl").read_text().splitlines()) == 80
    headway(folder, "train", "first.toml", *(word for setting in SHORT for word in ("--set", setting)))
    (folder / "runs/first").rename(folder / "runs/orders")
    told = headway(folder, "train", "runs/orders", "--set", "train.steps=2", "--set", "train.lr=1e-4")
    assert "resuming from step-000001" in told
    assert "from step 2 on: train.steps 1 -> 2, train.lr 0.0002 -> 0.0001" in told
    headway(folder, "export", "runs/orders", "order-taker", "--merge")
    used = subprocess.run([sys.executable, "use.py"], cwd=folder, check=True, capture_output=True, text=True).stdout
    assert used.strip()


def test_the_page_s_reward_is_what_it_says(folder: Path) -> None:
    scope: dict[str, object] = {}
    exec((folder / "my_rewards.py").read_text(), scope)
    order = scope["order"]
    assert callable(order)
    scores = [order("", text, "3 plums", text) for text in ("3 plums", "3 plums.", "3", "I would like 3 plums.")]
    assert scores == [2.0, 2.0, 0.5, -0.5]


def test_the_page_s_questions_about_other_machines_are_answered(folder: Path) -> None:
    plan = headway(folder, "plan", "first.toml", "--set", "model.path=Qwen/Qwen3-4B", "--machine", "24GiB", "--json")
    assert json.loads(plan)["verdict"] == "fits"
    assert "What trains on 24gib" in headway(folder, "size", "--machine", "24GiB")
