"""docs/foreign.md names every system and key with the defaults that the readers use, and what it and the README show
of an output is what the command prints."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from headway.foreign import megatron_lm, openrlhf, slime, trl, verl
from headway.foreign.found import KEYS
from headway.foreign.readers import readers
from headway.foreign.runs import BUILDERS
from headway.foreign.shell import read_text

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "foreign.md").read_text()
EXCERPTS = [
    (path.name, block)
    for path in (ROOT / "README.md", ROOT / "docs" / "foreign.md")
    for block in re.findall(
        r"<!-- an excerpt[^\n]* -->\n```console\n(\$ .*?)```\n", path.read_text(), flags=re.DOTALL
    )
]
STARTS = {
    "slime": "python3 slime/train.py --num-rollout 1 --rollout-batch-size 8 --n-samples-per-prompt 8",
    "miles": "python3 miles/train.py --num-rollout 1 --rollout-batch-size 8 --train-backend fsdp",
    "verl": "python3 -m verl.trainer.main_ppo trainer.nnodes=1",
    "openrlhf": "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b",
    "megatron": "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 8 --seq-length 8 --train-iters 1",
    "trl": "trl grpo --model_name_or_path a/b",
}
"""A command of each system."""


def section(title: str) -> str:
    """The part of the page below a heading."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert match is not None, title
    return match[1]


def rows(text: str) -> list[list[str]]:
    """The cells of each row of the tables, without blanks and backticks."""
    return [
        [cell.replace("`", "").strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| `")
    ]


def shown(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def test_every_system_of_the_reader_table_is_named() -> None:
    named = [row[0] for row in rows(PAGE.partition("## What was read")[0])]
    known = [
        found.system
        for read in readers()
        for command in STARTS.values()
        if (found := read(read_text(command), None)) is not None and command == STARTS[found.system]
    ]
    assert sorted(named) == sorted(set(known)) == sorted(STARTS)
    assert len(known) + 1 == len(list(readers())), "a reader that no command here is for, but that of Python's files"
    assert set(BUILDERS) | {"slime", "miles"} == set(named)


def test_every_key_of_the_settings_is_explained_once() -> None:
    explained = re.findall(r"\w+", " ".join(row[0] for row in rows(section("What was read"))))
    assert sorted(explained) == sorted(KEYS)


def test_flags_and_defaults_are_the_readers_own() -> None:
    for rule in slime.RULES:
        default = {"switch": "off", "given": "not given"}.get(rule.kind, shown(rule.default))
        flags = ", ".join(f"--{flag}" for flag in rule.flags)
        assert [rule.key, flags, default] in rows(section("slime and Miles"))
    for rule in megatron_lm.RULES:
        assert rule in slime.RULES or f"--{rule.flags[0]}" in section("Megatron-LM")
    for name, table in (("", verl.COMMON), (", FSDP", verl.SHARDED), (", Megatron", verl.MEGATRON)):
        for key, paths, _, value in table:
            assert [key + name, paths[0], shown(value)] in rows(section("verl"))
    for key, names, _, value in openrlhf.VALUED:
        assert [key, ", ".join(f"--{name}" for name in names), shown(value)] in rows(section("OpenRLHF"))
    for key, names in openrlhf.ON_OFF:
        assert [key, ", ".join(f"--{name}" for name in names), "off"] in rows(section("OpenRLHF"))


def test_defaults_of_trl_are_what_its_reader_derives() -> None:
    found = trl.from_table({"model_name_or_path": "a/b"}, "", "grpo")
    for key, _, default in rows(section("TRL")):
        assert shown(found.derived.get(key)) == default, key


def test_versions_are_those_of_the_readers() -> None:
    for version in (verl.VERSION, openrlhf.VERSION, trl.VERSION):
        assert version in PAGE
    assert megatron_lm.VERSION.split()[1] in section("Megatron-LM")
    assert re.findall(r"[0-9a-f]{9}", slime.__doc__ or "")[0] in section("slime and Miles")


@pytest.mark.parametrize(("page", "block"), EXCERPTS, ids=[block.splitlines()[0][2:50] for _, block in EXCERPTS])
def test_an_excerpt_is_what_the_command_prints(page: str, block: str, tmp_path: Path) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    first, *lines = block.splitlines()
    program, *words = shlex.split(first[2:])
    start = [sys.executable, *(["-m", "headway"] if program == "headway" else [])]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [*start, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", check=False
    )
    printed = [line.rstrip() for line in (done.stderr + done.stdout).splitlines()]
    place = 0
    for line in lines:
        if line.strip() == "...":
            continue
        assert line in printed[place:], f"{page} shows, and the command does not print (in this order): {line}"
        place += printed[place:].index(line) + 1
