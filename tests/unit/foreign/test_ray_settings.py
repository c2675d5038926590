"""Ray's memory monitor off or moved: where a launch sets it, and whether the raylet reads it there."""

import json

import pytest
from typer.testing import CliRunner

from headway.cli.app import app

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.actor.ppo_mini_batch_size=64 "
    "trainer.n_gpus_per_node=4"
)
OFF = "RAY_memory_monitor_refresh_ms=0"
SUBMIT = "ray job submit --address http://h:8265"


def planned(tmp_path, text: str, *options: str) -> dict:
    (tmp_path / "run.sh").write_text(text)
    words = ["plan", str(tmp_path / "run.sh"), "--machine", "4xh100-80", "--json", *options]
    result = CliRunner().invoke(app, words)
    assert result.exit_code in (0, 3, 4), result.output
    return json.loads(result.stdout)


def limits(plan: dict) -> dict[str, int]:
    (host,) = [each for each in plan["pools"] if each["pool"] == "node[0].host"]
    return {limit["name"]: limit["bytes"] for limit in host["limits"]}


HOST = ("--set", "machine.host=512GiB")


@pytest.mark.parametrize(
    "text",
    [
        f"export {OFF}\n{VERL}",
        f"{OFF} {VERL}",
        f"env {OFF} {VERL}",
        f"export {OFF}\nray start --head\n{SUBMIT} -- {VERL}",
        f"{OFF} ray start --head --num-gpus 4\n{VERL}",
        f"env {OFF} ray start --head\n{SUBMIT} -- {VERL}",
        f"ray start --head --system-config='{{\"memory_monitor_refresh_ms\": 0}}'\n{VERL}",
    ],
)
def test_off_where_ray_starts_takes_ray_s_limit_away(tmp_path, text):
    found = planned(tmp_path, text, *HOST)
    assert set(limits(found)) == {"memory"}
    assert any("switches Ray's memory monitor off" in each for each in found["unknown"])


@pytest.mark.parametrize(
    "text",
    [
        VERL,
        f"export RAY_memory_monitor_refresh_ms=100\n{VERL}",
        f"{OFF}\n{VERL}",  # set and not exported
        f"ray start --head\nexport {OFF}\n{SUBMIT} -- {VERL}",  # the raylet runs already
        f"export {OFF}\n{SUBMIT} -- {VERL}",  # to a cluster that is there
        f'{SUBMIT} --runtime-env-json=\'{{"env_vars": {{"RAY_memory_monitor_refresh_ms": "0"}}}}\' -- {VERL}',
        f"echo {OFF} ray start\n{VERL}",
    ],
)
def test_ray_s_limit_stays_where_the_raylet_does_not_read_it(tmp_path, text):
    assert set(limits(planned(tmp_path, text, *HOST))) == {"Ray 0.95", "memory"}


@pytest.mark.parametrize(
    "text",
    [
        f"export {OFF}\n{SUBMIT} -- {VERL}",
        f'{SUBMIT} --runtime-env-json=\'{{"env_vars": {{"RAY_memory_monitor_refresh_ms": "0"}}}}\' -- {VERL}',
    ],
)
def test_a_setting_that_does_nothing_is_told(tmp_path, text):
    assert any("does not read it" in each for each in planned(tmp_path, text, *HOST)["unknown"])
    assert not any("does not read it" in each for each in planned(tmp_path, VERL, *HOST)["unknown"])


def test_another_threshold_moves_the_limit(tmp_path):
    moved = limits(planned(tmp_path, f"export RAY_memory_usage_threshold=0.99\n{VERL}", *HOST))
    assert moved == {"Ray 0.99": int(512 * 2**30 * 0.99), "memory": 512 << 30}
    usual = limits(planned(tmp_path, f"export RAY_memory_usage_threshold=0.95\n{VERL}", *HOST))
    assert usual["Ray 0.95"] == int(512 * 2**30 * 0.95)


def test_the_environment_of_a_pod_counts(tmp_path):
    pod = tmp_path / "pod.yaml"
    env = "env: [{name: RAY_memory_monitor_refresh_ms, value: '0'}, {name: X, valueFrom: {fieldRef: {}}}], "
    text = (
        "kind: Pod\nmetadata: {name: train}\nspec:\n  containers:\n"
        "  - {name: main, ENV resources: {limits: {memory: 400Gi, nvidia.com/gpu: 4}}}\n"
    )
    pod.write_text(text.replace("ENV ", env))
    assert set(limits(planned(tmp_path, VERL, "--pod", str(pod)))) == {"pod"}
    pod.write_text(text.replace("ENV ", ""))
    assert set(limits(planned(tmp_path, VERL, "--pod", str(pod)))) == {"Ray 0.95", "pod"}


def test_a_value_that_is_no_number_is_refused(tmp_path):
    (tmp_path / "run.sh").write_text(f"export RAY_memory_usage_threshold=lots\n{VERL}")
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "run.sh"), "--machine", "4xh100-80"])
    assert "Ray does not start with it" in str(result.exception)
