"""Jobs that a YAML or JSON file describes: what they start, with which variables, under which limits."""

import json
from pathlib import Path

import pytest

from headway.cli.inputs import is_launch, read_case
from headway.cli.launch import read_launch
from headway.errors import InputError
from headway.foreign.manifests import is_placeholder, starts, without_placeholders
from headway.units import GIB

JOBS = Path(__file__).parents[2] / "data" / "jobs"


def settings(name: str) -> dict:
    return dict(read_launch([str(JOBS / name)]).found.settings)


class TestRayJob:
    def test_the_script_of_its_config_map_is_read_with_its_variables_and_arguments(self):
        read = settings("rayjob.yaml")
        assert (read["system"], read["model_name"]) == ("verl", "Qwen2.5-7B-Instruct")
        assert (read["samples_per_prompt"], read["gpus_per_node"], read["nodes"]) == (4, 8, 1)

    def test_the_limit_of_its_pod_is_the_plan_s(self):
        case = read_case([str(JOBS / "rayjob.yaml")], None, "8xh100-80", [])
        limits = {limit.name: limit.bytes for limit in case.machine.pool("node[0].host").limits}
        assert limits["pod"] == 900 * GIB

    def test_on_unified_memory_the_pod_bounds_nothing_and_the_run_is_planned(self):
        case = read_case([str(JOBS / "rayjob.yaml")], None, "8xgb10", [])
        assert "pod" not in {limit.name for pool in case.machine.pools for limit in pool.limits}


class TestChart:
    def test_what_is_put_in_later_is_unknown_and_the_rest_is_read(self):
        found = read_launch([str(JOBS / "chart.yaml")]).found
        assert found.settings["rollout_batch"] == 128
        assert "Values_maxLen" in found.unknown["max_response_len"]

    def test_a_limit_that_is_put_in_later_is_said_and_ends_no_plan(self):
        case = read_case([str(JOBS / "chart.yaml")], None, "8xh100-80", [])
        assert any("put in later" in text for text in case.workload.unknown)
        assert "pod" not in {limit.name for limit in case.machine.pool("node[0].host").limits}


def test_a_task_of_skypilot_has_its_nodes_and_devices():
    read = settings("task.yaml")
    assert (read["nodes"], read["gpus_per_node"], read["model_name"]) == (2, 8, "Qwen2.5-7B-Instruct")


def test_a_task_of_dstack():
    text = "nodes: 2\nenv: [MODEL=a/b]\ncommands: [python train.py $DSTACK_GPUS_NUM]\nresources: {gpu: H100:8}"
    assert starts(text)[0].script.split("\n")[-3:] == [
        "export DSTACK_NODE_RANK=0", "export MODEL=a/b", "python train.py $DSTACK_GPUS_NUM"
    ]  # fmt: skip


def test_variables_in_a_container_s_words_are_its_own():
    pod = {
        "kind": "Pod", "spec": {"containers": [{
            "name": "main", "command": ["torchrun", "--nproc_per_node=$(GPUS)"], "args": ["train.py", "a b"],
            "env": [{"name": "GPUS", "value": "4"}],
        }]},
    }  # fmt: skip
    assert starts(json.dumps(pod))[0].script == "export GPUS=4\ntorchrun --nproc_per_node=4 train.py 'a b'"


def test_a_shell_s_own_substitution_stays():
    text = "kind: Pod\nspec: {containers: [{command: [bash, -c, 'D=$(date); python train.py $D']}]}"
    assert starts(text)[0].script == "bash -c 'D=$(date); python train.py $D'"


def test_a_trainer_s_yaml_is_no_job(tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: FSDP\nnum_processes: 8\n")
    assert not is_launch([str(path)])
    with pytest.raises(InputError, match="describes no job"):
        read_case([str(path)], None, "h100-80", [])


def test_a_manifest_that_starts_nothing_says_what_to_pass_instead(tmp_path):
    path = tmp_path / "pod.yaml"
    path.write_text("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: main, image: x}]}\n")
    with pytest.raises(InputError, match="starts nothing that is written in it"):
        read_launch([str(path)])


def test_placeholders():
    assert without_placeholders("a: b # {x}") == "a: b # {x}"
    assert is_placeholder("<memory>Gi")
    assert not is_placeholder("1600Gi")
    assert not is_placeholder(None)
