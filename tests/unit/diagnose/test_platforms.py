"""Questions and advice speak of what the log shows; Slurm's numbers are no steps, and a function's name no phase."""

import json

import pytest

from headway.guard.steps import latest_step

from .told import told

LOST = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
LOST += "Worker unexpectedly exits with a connection error code 2. End of file."
REFUSED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1002.00 MiB. GPU 2 has a total capacity of 93.12 "
    "GiB of which 560.00 MiB is free. Including non-PyTorch memory, this process has 92.55 GiB memory in use. Of the "
    "allocated memory 90.80 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated."
)
FORWARD = '  File "/x/layers.py", line 9, in forward\n    return self.mlp(x)\n'


def asked(text: str) -> str:
    return " ".join(each.command for each in told(text).would_settle)


@pytest.mark.parametrize(
    ("text", "there", "absent"),
    [
        ("Killed", ("dmesg",), ("kubectl", "/tmp/ray", "sacct")),
        (f"ray.exceptions.ActorDiedError: {LOST}", ("/tmp/ray",), ("kubectl", "sacct")),
        ("kubelet: container main of pod train-0 restarts\nKilled", ("kubectl",), ("/tmp/ray", "sacct")),
    ],
)
def test_commands_are_of_platforms_that_the_log_shows(text: str, there: tuple[str, ...], absent: tuple[str, ...]):
    found = asked(text)
    assert all(word in found for word in there)
    assert not any(word in found for word in absent)


def test_flags_of_frameworks_only_where_one_is_seen():
    plain = json.dumps([each.text for each in told(FORWARD + REFUSED).advice])
    assert "micro-batch" in plain
    assert "verl" not in plain
    assert "--max-tokens" not in plain
    seen = told(FORWARD.replace("/x/", "/x/verl/workers/") + REFUSED)
    assert "ppo_max_token_len_per_gpu" in json.dumps([each.text for each in seen.advice])
    assert "--max-tokens-per-gpu" not in json.dumps([each.text for each in seen.advice])


def test_the_same_change_is_advised_once():
    effects = [each.effect for each in told(FORWARD + REFUSED).advice]
    assert len(effects) == len(set(effects))


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("step 100 loss 1.2\nslurmstepd: error: *** STEP 4242.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", 100),
        ("step 100\nsrun: Job step 4242.0 aborted before step completely launched.", 100),
        ("step 100\nslurmstepd: error: Detected 1 oom_kill event in StepId=4242.0.", 100),
        ("step 100 loss 1.2\nstep 101 on cuda:0", 101),
        ("step 100\nSTEP 7.5 seconds", 100),
    ],
)
def test_slurms_numbers_are_no_steps(text: str, step: int):
    assert latest_step(text) == step


@pytest.mark.parametrize(
    ("frame", "phase"),
    [
        ('  File "/x/model.py", line 3, in generate_qkv\n', ""),
        ('  File "/x/rollout.py", line 3, in generate_sequences\n', "rollout"),
        ('  File "/x/torch/_dynamo/eval_frame.py", line 3, in _fn\n', ""),
        ('  File "/x/run.py", line 3, in evaluate\n', "eval"),
        ("Training completed\n  File \"/x/run.py\", line 3, in train\n", ""),
        ('  File "/x/run.py", line 3, in train\n', "train"),
    ],
)  # fmt: skip
def test_phases_by_the_names_of_functions(frame: str, phase: str):
    assert told(frame + REFUSED).phase == phase


def test_an_exit_code_of_minus_nine_is_said_to_be_sigkill():
    text = "torch.distributed.elastic.multiprocessing.api: failed (exitcode: -9) local_rank: 3 (pid: 77) of binary: p"
    assert told(text).sentence.startswith("SIGKILL ended")
    assert "exit code -9" in told(text).sentence
    assert "SIGKILL" not in told(text.replace("-9", "1")).sentence


WATCHDOG = (
    "[rank3]:[E1122 10:01:02.000 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLGATHER, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600010 milliseconds "
    "before timing out."
)


def test_a_save_that_was_running_when_a_collective_waited_is_shown():
    found = told(f"saving checkpoint at iteration     500 to /ckpt in torch_dist format\n{WATCHDOG}")
    assert "while a checkpoint was being written" in found.sentence
    assert any("saving checkpoint" in place.text for place in found.evidence)
    for text in ("successfully saved checkpoint from iteration 500", "iteration 500/1000 | loss 2.1"):
        assert "checkpoint" not in told(f"{text}\n{WATCHDOG}").sentence


def test_a_fork_of_a_huge_process_is_named():
    text = (
        'Traceback (most recent call last):\n  File "/usr/lib/subprocess.py", line 1955, in _execute_child\n'
        "    self.pid = _fork_exec(\nOSError: [Errno 12] Cannot allocate memory"
    )
    assert "refused to fork" in told(text).sentence
    assert "fork" not in told(text.replace("_fork_exec(", "mmap(").replace("_execute_child", "load")).sentence


def test_prefixes_in_any_nesting_are_cut():
    before = "(TaskRunner pid=12, ip=10.0.0.1) (WorkerDict pid=3401) [rank3]: ERROR 01-01 12:00:00 [file.py:12] "
    lines = (
        "Traceback (most recent call last):",
        '  File "/app/reward.py", line 3, in score',
        "ValueError: bad label 7",
    )
    found = told("\n".join(before + line for line in lines))
    assert "(ValueError: bad label 7)" in found.sentence
    assert found.cause == "user-code-error"
