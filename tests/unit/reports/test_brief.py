"""A plan in thirty seconds: verdict, one number against one limit, at most three changes with what they cost."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.app import app

ROOT = Path(__file__).parents[3]
QUESTIONS = {
    "Qwen3-8B on a 4090": ("Qwen3-8B", "--machine", "rtx4090"),
    "LoRA of a 70B on 8 A100": ("Llama-3.1-70B", "--trainer", "headway-lora", "--machine", "8xa100-80"),
    "slime with a 32B": ("--system", "slime", "--model", "Qwen3-32B", "--machine", "8xh100-80"),
    "verl with 16k": ("Qwen2.5-7B", "--trainer", "verl", "--machine", "4xa6000", "--set", "rollout.max_answer=16384"),
    "Miles on a GB10": ("qwen3-4B", "--trainer", "miles-fsdp", "--machine", "gb10"),
    "fits": ("qwen3-0.6B", "--machine", "rtx4090"),
    "host known": ("qwen3-0.6B", "--machine", "rtx4090", "--set", "machine.host=64GiB"),
    "TRL on 8 GPUs": ("Qwen3-8B", "--trainer", "trl", "--machine", "8xa100-80"),
}


def plan(*words: str, width: int = 80) -> list[str]:
    env = {"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(app, ["plan", *words], env=env)
    assert result.exit_code in (0, 3, 4), result.output
    return [line.rstrip() for line in result.stdout.splitlines()]


def flat(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def headline(text: str) -> str:
    words = ("Fits:", "Fits, if the host has room:", "Tight:", "Does not fit:", "Cannot tell:")
    at = min(text.index(word) for word in words if word in text)
    return text[at:].partition(").")[0]


@pytest.mark.parametrize("name", QUESTIONS)
def test_it_fits_a_screen_of_80_columns(name: str) -> None:
    lines = plan(*QUESTIONS[name])
    assert len(lines) <= 36
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_verdict_has_one_limit_and_every_change_its_cost(name: str) -> None:
    text = flat(plan(*QUESTIONS[name]))
    verdict = headline(text)
    assert verdict.count("GiB") == (3 if verdict.startswith("Tight") else 2)
    assert "the limit is" in verdict
    changes = text.count("; cost: ")
    assert changes <= 3
    assert (changes == 0) == verdict.startswith("Fits")


def test_what_is_behind_lines_is_counted_and_shown_there() -> None:
    words = QUESTIONS["TRL on 8 GPUs"]
    short, long = flat(plan(*words)), flat(plan(*words, "--lines"))
    assert "more: --lines" in short
    assert "--lines gives each with its reason" in short
    for only in ("No help alone for", "Assumed", "worst phase", "A optimizer moments"):
        assert only in long
    assert "No help alone" not in short
    assert "nobody said;" not in short
    assert "cost: learning (" in long


def test_the_tight_pool_leads_whatever_the_others_are() -> None:
    lines = plan(*QUESTIONS["host known"], "--set", "machine.host=3GiB")
    text = flat(lines)
    assert headline(text).endswith("(memory, node[0].host")
    assert [line for line in lines if line.startswith("node[0].device[0]: fits, at most")]


def test_a_host_of_unknown_size_is_one_line_and_never_the_headline() -> None:
    lines = plan(*QUESTIONS["fits"])
    assert "device memory" in headline(flat(lines))
    assert len([line for line in lines if "nobody said how much it has" in line]) == 1


def test_how_a_large_model_is_assumed_to_be_divided_is_named() -> None:
    text = flat(plan(*QUESTIONS["slime with a 32B"]))
    assert "Assumed: layout.tensor = 8; trainer.optimizer.offload = 1.0;" in text
    smaller = flat(plan("Qwen3-14B", "--trainer", "slime", "--machine", "8xh100-80"))
    assert "Assumed: rollout.max_prompt = 512; rollout.max_answer = 1024;" in smaller


def test_a_launch_has_all_errors_and_the_first_of_the_other_notes() -> None:
    words = ("tests/data/scripts/slime-step-75.sh", "--model", "qwen3-30B-A3B", "--machine", "b200x8")
    words = (str(ROOT / words[0]), *words[1:], "--set", "host.bytes=1600e9")
    short, long = plan(*words), plan(*words, "--lines")
    assert max(map(len, short)) <= 80
    notes = [[line.split()[0] for line in lines if re.match(r"  [✗!·] ", line)] for lines in (short, long)]
    assert notes[0].count("✗") == notes[1].count("✗") == 3
    assert len(notes[0]) == 5 < len(notes[1])
    assert f"{len(notes[1]) - 5} more, and why each matters: --lines" in flat(short)
    assert "Not read: 2 flags" in flat(short)


def test_unused_devices_of_the_machine_are_told_of_and_only_there() -> None:
    assert "headway trains on one of the 8 devices" in flat(plan(*QUESTIONS["LoRA of a 70B on 8 A100"]))
    assert "headway trains on one" not in flat(plan("Llama-3.1-70B", "--machine", "a100-80"))
    assert "headway trains on one" not in flat(plan("qwen3-0.6B", "--machine", "8xa100-80"))
