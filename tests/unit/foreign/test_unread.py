"""Launchers behind a submitter: in the folder that it takes along, or read by the flags behind them alone."""

from pathlib import Path

import pytest

from headway.cli.launch import read_launch
from headway.errors import InputError
from headway.foreign.arguments_log import read_log

OWN = "data.train_batch_size=64 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct"
MORE = "actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=4"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "launcher.sh").write_text(f'python3 -m verl.trainer.main_ppo {OWN} {MORE} "$@"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "given", ["--working-dir jobs", "--working-dir=jobs", """--runtime-env-json={"working_dir":"jobs"}"""]
)
def test_the_launcher_is_looked_for_in_the_folder_that_is_taken_along(folder, given):
    words = ["ray", "job", "submit", *given.split(), "--", "bash", "launcher.sh", "trainer.n_gpus_per_node=2"]
    found = read_launch(words).found
    assert (found.settings["samples_per_prompt"], found.settings["gpus_per_node"]) == (4, 2)


def test_also_from_a_script(folder):
    (folder / "submit.sh").write_text("ray job submit --working-dir ./jobs -- bash launcher.sh trainer.nnodes=2\n")
    found = read_launch(["submit.sh"]).found
    assert (found.settings["samples_per_prompt"], found.settings["nodes"]) == (4, 2)


def test_own_flags_of_a_system_behind_a_launcher_that_is_not_here_suffice(folder):
    words = f"ray job submit --working-dir elsewhere -- bash run.sh {OWN} {MORE}".split()
    found = read_launch(words).found
    assert (found.system, found.settings["rollout_batch"], found.settings["samples_per_prompt"]) == ("verl", 64, 4)
    assert any("run.sh" in text and "what it sets itself" in text for text in found.unread)


def test_flags_that_tell_no_system_do_not(folder):
    with pytest.raises(InputError, match=r"elsewhere.run\.sh: no such file; what it starts is not known"):
        read_launch(["ray", "job", "submit", "--working-dir", "elsewhere", "--", "bash", "run.sh", "--lr", "1e-6"])


def test_a_command_that_a_python_launcher_prints_before_it_runs_it():
    log = (
        "EXEC: pkill -9 sglang; sleep 3\n"
        "EXEC: export A=1 && ray job submit --runtime-env-json='{}' -- python3 /root/miles/train.py --num-layers 36 "
        "--rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192 --global-batch-size 256 "
        "--actor-num-gpus-per-node 8 --hf-checkpoint /m/Qwen3-4B --train-backend fsdp\n"
    )
    found = read_log(log, "out.log")
    assert (found.system, found.settings["rollout_batch"], found.settings["gpus_per_node"]) == ("miles", 32, 8)
    assert read_log("EXEC: mkdir -p /root/models && python3 convert.py --x 1\n") is None
