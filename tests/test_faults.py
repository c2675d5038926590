"""Inputs that were once answered wrongly: `headway plan` and `headway doctor` on every file of data/faults."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headway.cli.app import app

FAULTS = Path(__file__).parent / "data" / "faults"
ENVIRONMENT = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def call(command: str, name: str, *words: str) -> Result:
    return CliRunner().invoke(app, [command, str(FAULTS / name), *words], env=ENVIRONMENT)


def planned(name: str, machine: str, *words: str) -> dict:
    return json.loads(call("plan", name, "--machine", machine, "--json", *words).stdout)


def told(name: str) -> dict:
    """The first finding of a log."""
    return json.loads(call("doctor", name, "--json").stdout)["findings"][0]


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("claim_axolotl.sh", "axolotl"), ("claim_llama_factory.sh", "LLaMA-Factory"),
        ("claim_nemo_rl.sh", "NeMo-RL"), ("claim_open_instruct.sh", "open-instruct"),
        ("claim_prime_rl.sh", "prime-rl"), ("claim_unsloth.sh", "Unsloth"),
        ("claim_hydra.sh", "no trainer that is known"), ("claim_sft.sh", "no trainer that is known"),
    ],
)  # fmt: skip
def test_scripts_of_others_are_named_and_not_read(name, system):
    result = call("plan", name, "--machine", "8xh100-80")
    assert result.exit_code != 0
    assert system in str(result.exception)
    assert "--machine" in str(result.exception)


def test_a_critic_is_planned_as_the_model_that_it_is():
    without, beside = planned("grpo_32b.sh", "8xh100-80"), planned("ppo_verl.sh", "8xh100-80")
    peaks = [
        max(pool["expected_bytes"] for pool in each["pools"] if "device" in pool["pool"])
        for each in (without, beside)
    ]
    # fp32 weights, gradients and two moments of 32 billion parameters over 8 devices are 61 GiB beside the actor's
    assert peaks[1] - peaks[0] > 25 << 30
    assert beside["verdict"] == "does not fit"


def test_four_models_on_devices_of_their_own():
    found = planned("ppo_openrlhf.sh", "3x8xh100-80")
    assert {line["role"] for line in found["lines"]} >= {"trainer", "critic", "reward", "reference", "engine"}


def test_counts_of_a_job():
    found = planned("slurm.sh", "4x8xh100-80")
    assert (found["settings"]["nodes"], found["settings"]["gpus_per_node"]) == (4, 8)
    assert not found["unplanned"]
    assert "set nowhere" not in call("plan", "slurm.sh", "--machine", "4x8xh100-80").stdout


def test_rays_monitor_that_is_off_has_no_limit():
    assert (
        "Ray 0.95"
        not in call("plan", "ray_monitor_off.sh", "--machine", "4xh100-80", "--set", "machine.host=512GiB").stdout
    )
    assert "Ray 0.95" in call("plan", "grpo_32b.sh", "--machine", "8xh100-80", "--set", "machine.host=512GiB").stdout


def test_suggestions_are_for_the_pool_that_is_short():
    found = planned("wrong_pool.sh", "8xh100-80", "--set", "machine.host=192GiB")
    short = {pool["pool"] for pool in found["pools"] if pool["verdict"] != "fits"}
    assert short
    assert {each["pool"] for each in found["remedies"]} <= short


@pytest.mark.parametrize(
    ("name", "mechanism", "cause"),
    [
        ("global_oom_trace.log", "kernel-oom-kill", None), ("impossible_1eb.log", "collective-timeout", None),
        ("impossible_300gib.log", "device-allocation-failure", "user-code-error"),
        ("own_process.log", "device-allocation-failure", "device-activations"),
        ("slurm_step.log", "cgroup-oom-kill", None), ("slurm_step_cancelled.log", "cgroup-oom-kill", None),
        ("unified_free_memory.log", "engine-exit", "unified-memory-full"),
    ],
)  # fmt: skip
def test_deaths(name, mechanism, cause):
    found = told(name)
    assert found["mechanism"] == mechanism
    assert cause is None or found["cause"] == cause


def test_slurms_numbers_are_no_steps():
    assert [told(f"slurm_step{end}.log")["step"] for end in ("", "_cancelled")] == [100, 100]


def test_a_functions_name_is_no_phase():
    assert told("impossible_300gib.log")["phase"] is None


def test_no_expandable_segments_where_the_device_is_full():
    assert "expandable_segments" not in json.dumps(told("own_process.log")["remedies"])


def test_a_unified_machine_is_told_of_its_page_cache():
    advice = json.dumps(told("unified_free_memory.log")["remedies"])
    assert "page cache" in advice
    assert "free -h" in advice
