"""Flags of a command line, and the program behind its launchers."""

import pytest

from headway.foreign.command import flags, launches, split
from headway.foreign.shell import read_text
from headway.foreign.shell.values import Gap, known, unknown


def texts(argv, switches=frozenset()):
    return {name: [flag.text for flag in found] for name, found in flags(argv.split(" "), switches).items()}


def test_flags_take_what_stands_before_the_next():
    found = texts('--eval-data aime /a.jsonl --tp=4 --json={"a":1} --colocate --lr -1e-6 --bs 1 2 4 --x --y= z')
    assert found == {
        "eval-data": ["aime /a.jsonl"], "tp": ["4"], "json": ['{"a":1}'], "colocate": [""], "lr": ["-1e-6"],
        "bs": ["1 2 4"], "x": [""], "y": [""],
    }  # fmt: skip


def test_an_empty_value_does_not_swallow_the_next_flag():
    found = flags(["--prompt-data", "--input-key", "prompt"])
    assert found["prompt-data"][0].values == ()
    assert found["input-key"][0].text == "prompt"


def test_every_time_that_a_flag_is_given_is_kept_and_the_last_is_found():
    line = split([known(text) for text in ["--a", "1", "--b", "2", "--a", "3"]])
    assert [flag.text for flag in line.flags["a"]] == ["1", "3"]
    assert line.last("a").text == "3"
    assert line.last("b", "a").text == "3"
    assert line.last("c") is None


def test_a_word_after_a_switch_is_nobody_s():
    line = split([known(text) for text in ["--colocate", "x", "--tp", "2"]], frozenset({"colocate"}))
    assert [word.text for word in line.words] == ["x"]


def test_unset_variables_after_a_flag():
    hole = unknown("variable X is not set in the script", "X", "unset")
    line = split([known("--colocate"), hole, known("--tp"), hole], frozenset({"colocate"}))
    assert [word.shown for word in line.loose] == ["${X}"]
    assert line.last("tp").why == "variable X is not set in the script"


def test_a_gap_takes_nothing_and_is_kept():
    gap = Gap("not known", "ARGS", "unread")
    line = split([known("--a"), gap, known("x")])
    assert line.gaps == (gap,)
    assert line.last("a").values == ()


def test_what_a_program_prints_behind_a_value_may_be_flags():
    printed = unknown("asks the machine: python3 args.py", "python3", "machine")
    line = split([known("--tp"), known("4"), printed, known("--pp"), printed])
    assert [gap.name for gap in line.gaps] == ["python3"]
    assert (line.last("tp").text, line.last("pp").text) == ("4", None)


def started(text):
    return [(launch.program, launch.name) for command in read_text(text).commands for launch in launches(command)]


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("python3 train.py --x", "train.py"),
        ("python -u -W ignore /root/slime/train_async.py --x", "/root/slime/train_async.py"),
        ("python3 -m verl.trainer.main_ppo a=b", "verl.trainer.main_ppo"),
        ("torchrun --nproc_per_node=8 --master_port 1 scripts/train.py --x", "scripts/train.py"),
        ("torchrun --nnodes 2 -m pkg.train --x", "pkg.train"),
        ("accelerate launch --config_file c.yaml grpo.py --x", "grpo.py"),
        ("deepspeed --num_gpus 8 --module openrlhf.cli.train_ppo --x", "openrlhf.cli.train_ppo"),
        ("ray job submit --address=x --runtime-env-json '{}' -- python3 train.py --x", "train.py"),
        ("ray job submit --working-dir . -- 'cd x && python3 train.py --x'", "train.py"),
        ("srun -N 2 --container-image=x bash -lc 'python3 train.py --x'", "train.py"),
        ("ssh host 'cd /root && nohup python3 train.py --x &'", "train.py"),
        ("nohup env A=B python3 train.py --x > log 2>&1 &", "train.py"),
        ("exec python3.11 $DIR/train.py --x", "${DIR}/train.py"),
        ("${PYTHON:-python3} train.py", "train.py"),
        ("sudo -E python train.py", "train.py"),
        ("uv run train.py --x", "train.py"),
        ("python /x/hooks.py train_async.py --x", "train_async.py"),
        ("exec bash run.sh python hooks.py python train.py --x", "train.py"),
        ("CUDA_VISIBLE_DEVICES=0 python train.py | tee log", "train.py"),
        ("if ! python train.py; then echo failed; fi", "train.py"),
        ("for seed in 1; do python train.py; done", "train.py"),
    ],
)
def test_the_program_is_found_behind_its_launcher(text, program):
    assert [found for found, _ in started(text)] == [program]


@pytest.mark.parametrize(
    "text",
    [
        "echo python3 train.py --x",
        "# python3 train.py",
        "cat train.py",
        "grep x train.py",
        "pkill -f train.py",
        "pip install -e . train.py",
        "sglang serve --model x --tp 8",
        "cp train.py /x",
        "cat <<EOF\npython3 train.py\nEOF",
        "X='python3 train.py'",
    ],
)
def test_what_only_names_a_program_starts_none(text):
    assert started(text) == []


def test_variables_for_the_program_are_kept():
    (command,) = read_text("A=1 env B=2 python3 train.py").commands
    (launch,) = launches(command)
    assert {name: word.text for name, word in launch.environment.items()} == {"A": "1", "B": "2"}
