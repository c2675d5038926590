"""Devices of a launch that its command does not count in numbers: the job's, the machine's, or not known."""

import json

import pytest
from typer.testing import CliRunner

from headway.cli.app import app
from headway.errors import InputError
from headway.facts.machines import by_name
from headway.foreign import counts, launched
from headway.foreign.readers import settings_of
from headway.foreign.shell import read_text

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=256 "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.actor.ppo_mini_batch_size=64 "
)
TRL = "grpo.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct --num_generations 8 --max_completion_length 512 "
ZERO3 = "--deepspeed ds_zero3.json"


def planned(tmp_path, text: str, *options: str, code: int | None = None) -> dict:
    (tmp_path / "run.sh").write_text(text)
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "run.sh"), "--json", *options])
    assert result.exit_code == code or (code is None and result.exit_code in (0, 3)), result.output
    return json.loads(result.stdout)


def ranks(text: str, machine: str | None = None, *overrides: str) -> tuple[int, int, int]:
    """Nodes, devices of each, and how many ranks share the parameters."""
    script = read_text(text)
    there = by_name(machine) if machine else None
    told = counts.of_machine(script, there) if there else None
    if told:
        script = read_text(text, counts=told)
    layout = launched.workload(settings_of(script), None, overrides, there).layout
    return layout.nodes, layout.devices, layout.shards


@pytest.mark.parametrize(
    ("text", "machine", "expected"),
    [
        (VERL + "trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l)", "8xh100-80", (1, 8, 8)),
        (VERL + "trainer.n_gpus_per_node=$GPUS trainer.nnodes=$WORLD_SIZE", "2x8xh100-80", (2, 8, 16)),
        (VERL + "trainer.n_gpus_per_node=$SLURM_GPUS_ON_NODE trainer.nnodes=$SLURM_NNODES", "2x4xh100-80", (2, 4, 8)),
        (f"torchrun --nproc_per_node gpu {TRL}{ZERO3}", "8xh100-80", (1, 8, 8)),
        (f"torchrun --nproc_per_node=auto --nnodes 2:2 {TRL}{ZERO3}", "2x8xh100-80", (2, 8, 16)),
        (f"torchrun --nproc_per_node=4 --nnodes 1:2 {TRL}{ZERO3}", "2x8xh100-80", (2, 4, 8)),
        (f"torchrun --nproc_per_node $MY_COUNT {TRL}{ZERO3}", "8xh100-80", (1, 8, 8)),
        (f"deepspeed {TRL}{ZERO3}", "8xh100-80", (1, 8, 8)),
        (f"accelerate launch --use_fsdp {TRL}", "8xh100-80", (1, 8, 8)),
        (f"deepspeed --hostfile hosts {TRL}{ZERO3}", "2x8xh100-80", (2, 8, 16)),
        (f"mpirun -np 16 python {TRL}{ZERO3}", "2x8xh100-80", (2, 8, 16)),
        (
            f"accelerate launch --num_machines $SLURM_NNODES --num_processes $((SLURM_NNODES * 8)) --use_fsdp {TRL}",
            "2x8xh100-80", (2, 8, 16),
        ),
        (f"accelerate launch --num_machines $N --num_processes 16 --use_fsdp {TRL}", "4x8xh100-80", (4, 4, 16)),
    ],
)  # fmt: skip
def test_counts_of_the_machine_that_is_asked_for(text, machine, expected):
    assert ranks(text, machine) == expected


@pytest.mark.parametrize(
    ("text", "machine", "expected"),
    [
        (VERL + "trainer.n_gpus_per_node=4", "8xh100-80", (1, 4, 4)),
        (VERL + "trainer.n_gpus_per_node=${GPUS:-4}", "8xh100-80", (1, 4, 4)),
        (f"torchrun --nproc_per_node 2 {TRL}{ZERO3}", "8xh100-80", (1, 2, 2)),
        (f"torchrun {TRL}{ZERO3}", "8xh100-80", (1, 1, 1)),  # torchrun starts one process where nothing is said
        (f"deepspeed --num_gpus 2 {TRL}{ZERO3}", "8xh100-80", (1, 2, 2)),
        (f"accelerate launch --num_processes 4 --use_fsdp {TRL}", "8xh100-80", (1, 4, 4)),
        (f"python3 {TRL}", "8xh100-80", (1, 1, 1)),
        (f"CUDA_VISIBLE_DEVICES=0,1,2,3 deepspeed {TRL}{ZERO3}", "8xh100-80", (1, 4, 4)),
        (f"export CUDA_VISIBLE_DEVICES=4,5\naccelerate launch --use_fsdp {TRL}", "8xh100-80", (1, 2, 2)),
        (f"CUDA_VISIBLE_DEVICES=0 deepspeed --num_gpus 2 {TRL}{ZERO3}", "8xh100-80", (1, 2, 2)),
        (f"mpirun -np 4 python {TRL}{ZERO3}", "8xh100-80", (1, 4, 4)),
        (f"mpirun -np 16 --map-by ppr:8:node python {TRL}{ZERO3}", "2x8xh100-80", (2, 8, 16)),
    ],
)
def test_counts_that_the_command_says_stay(text, machine, expected):
    assert ranks(text, machine) == expected


JOB = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n"


@pytest.mark.parametrize(
    "command",
    [
        VERL + "trainer.n_gpus_per_node=$SLURM_GPUS_ON_NODE trainer.nnodes=$SLURM_NNODES",
        VERL + "trainer.n_gpus_per_node=$MY_GPUS trainer.nnodes=$MY_NODES",
        VERL + "trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l) trainer.nnodes=$SLURM_JOB_NUM_NODES",
        f"srun torchrun --nnodes $SLURM_NNODES --nproc_per_node gpu {TRL}{ZERO3}",
        f"srun accelerate launch --num_machines $SLURM_NNODES --num_processes $((SLURM_NNODES*8)) --use_fsdp {TRL}",
        f"srun --ntasks-per-node=8 python {TRL}{ZERO3}",
    ],
)
def test_counts_of_the_job(command):
    assert ranks(JOB + command) == (4, 8, 32)
    assert ranks(JOB + command, "4x8xh100-80") == (4, 8, 32)


def test_the_command_s_own_counts_win_over_the_job():
    assert ranks(JOB + VERL + "trainer.n_gpus_per_node=4 trainer.nnodes=2") == (2, 4, 8)


def test_the_plan_says_what_it_took_of_the_machine(tmp_path):
    text = VERL + "trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l)"
    found = planned(tmp_path, text, "--machine", "8xh100-80")
    assert any("1 x 8 devices (assumed: as 8xh100-80 has" in each for each in found["unknown"])
    one = planned(tmp_path, text, "--machine", "h100-80")
    assert any("h100-80 is one device" in each for each in one["unknown"])
    for literal in ("trainer.n_gpus_per_node=8", "trainer.n_gpus_per_node=4 trainer.default_local_dir=$NOT_SET"):
        beside = f"ray start --head --num-gpus $(nvidia-smi -L | wc -l)\n{VERL}{literal}"
        said = planned(tmp_path, beside, "--machine", "8xh100-80")
        assert not any("as 8xh100-80 has" in each for each in said["unknown"])


def test_sizes_that_hang_on_the_count_follow_it(tmp_path):
    text = (
        f"N=$(nvidia-smi -L | wc -l)\n{VERL}trainer.n_gpus_per_node=$N "
        "actor_rollout_ref.rollout.tensor_model_parallel_size=$((N / 2))"
    )
    assert planned(tmp_path, text, "--machine", "8xh100-80")["settings"]["gpus_per_engine"] == 4


def test_a_count_that_cannot_hold_the_layout_is_not_taken_for_the_run_s(tmp_path):
    text = (
        f"{VERL}actor_rollout_ref.actor.strategy=megatron trainer.n_gpus_per_node=$N "
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4"
    )
    (tmp_path / "run.sh").write_text(text)
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "run.sh"), "--machine", "h100-80"])
    assert isinstance(result.exception, InputError)
    assert "over 4 devices" in str(result.exception)
    assert "--machine 4xh100-80" in str(result.exception)
    assert planned(tmp_path, text, "--machine", "4xh100-80")["settings"]["tp"] == 4


def test_without_a_machine_a_count_stays_open():
    found = settings_of(read_text(VERL + "trainer.n_gpus_per_node=$N"))
    run = launched.workload(found)
    assert "how many devices the run has is not known" in run.unplanned[0]
    assert not launched.workload(found, None, (), by_name("8xh100-80")).unplanned
    assert not launched.workload(found, None, ("layout.devices=8",)).unplanned


@pytest.mark.parametrize(
    "text",
    [
        VERL + "trainer.n_gpus_per_node=1",
        f"torchrun --nproc_per_node 1 {TRL}{ZERO3}",
        "python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes 1 --actor_num_gpus_per_node 1 --zero_stage 3 "
        "--pretrain Qwen/Qwen2.5-7B --vllm_num_engines 1 --colocate_all_models",
        "python3 train.py --train-backend fsdp --rollout-batch-size 8 --hf-checkpoint /m/Qwen3-4B --colocate "
        "--actor-num-nodes 1 --actor-num-gpus-per-node 1 --keep-fp32-master",
    ],
)
def test_set_devices_shares_the_state_over_them(text):
    assert ranks(text, "8xh100-80") == (1, 1, 1)
    assert ranks(text, "8xh100-80", "layout.devices=8") == (1, 8, 8)
    assert ranks(text, "2x8xh100-80", "layout.devices=8", "layout.nodes=2") == (2, 8, 16)
    assert ranks(text, "8xh100-80", "layout.devices=8", "layout.shards=4")[2] == 4


@pytest.mark.parametrize("value", ["\u00b2", "8.0", "x", "-1", ""])
def test_set_devices_to_what_is_no_count_is_refused(value):
    with pytest.raises(InputError, match=r"layout\.devices"):
        ranks(VERL + "trainer.n_gpus_per_node=8", "8xh100-80", f"layout.devices={value}")


def test_set_devices_leaves_copies_copies():
    layout = launched.workload(
        settings_of(read_text(f"torchrun --nproc_per_node 1 {TRL}")), None, ("layout.devices=8",)
    ).layout
    assert (layout.shards, layout.replicas) == (1, 8)


def test_the_job_s_memory_is_a_limit_of_the_host(tmp_path):
    text = f"{JOB}#SBATCH --mem=100G\n{VERL}trainer.nnodes=$SLURM_NNODES"
    found = planned(tmp_path, text, "--machine", "4x8xh100-80")
    (host,) = [each for each in found["pools"] if each["pool"] == "node[0].host"]
    assert [limit["name"] for limit in host["limits"]] == ["job"]
    assert host["limits"][0]["bytes"] == 100 << 30
    free = planned(tmp_path, text.replace("--mem=100G", "--mem=0"), "--machine", "4x8xh100-80")
    assert not next(each for each in free["pools"] if each["pool"] == "node[0].host")["limits"]


def test_what_a_scheduler_sets_is_not_set_nowhere(tmp_path):
    text = f"{VERL}trainer.nnodes=$SLURM_NNODES trainer.default_local_dir=/c/$ARNOLD_JOB data.train_files=$DATA"
    lint = planned(tmp_path, text, "--machine", "8xh100-80")["lint"]
    told = " ".join(note["text"] for note in lint)
    assert "$DATA is set nowhere" in told
    assert "SLURM" not in told
    assert "ARNOLD_JOB is set nowhere" not in told


def test_the_devices_of_a_pod_are_the_run_s(tmp_path):
    pod = tmp_path / "pod.yaml"
    pod.write_text(
        "kind: Pod\nmetadata: {name: train}\nspec:\n  containers:\n"
        "  - {name: main, resources: {limits: {memory: 400Gi, nvidia.com/gpu: 4}}}\n"
    )
    for count in ("$(nvidia-smi -L | wc -l)", "$MY_COUNT"):
        text = f"{VERL}trainer.n_gpus_per_node={count}"
        assert planned(tmp_path, text, "--machine", "8xh100-80", "--pod", str(pod))["settings"]["gpus_per_node"] == 4
    said = planned(tmp_path, f"{VERL}trainer.n_gpus_per_node=2", "--machine", "8xh100-80", "--pod", str(pod))
    assert said["settings"]["gpus_per_node"] == 2


def test_a_script_that_is_submitted_with_other_counts(tmp_path):
    (tmp_path / "run.sh").write_text(
        f"{JOB}{VERL}trainer.n_gpus_per_node=$SLURM_GPUS_ON_NODE trainer.nnodes=$SLURM_NNODES"
    )
    words = ["--machine", "2x8xh100-80", "--json", "--", "sbatch", "--nodes=2", str(tmp_path / "run.sh")]
    result = CliRunner().invoke(app, ["plan", *words])
    assert result.exit_code in (0, 3), result.output
    assert json.loads(result.stdout)["settings"]["nodes"] == 2
    (tmp_path / "submit.sh").write_text(f"sbatch -N 2 --gpus-per-node=4 {tmp_path}/run.sh")
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "submit.sh"), "--machine", "2x8xh100-80", "--json"])
    assert result.exit_code in (0, 3), result.output
    settings = json.loads(result.stdout)["settings"]
    assert (settings["nodes"], settings["gpus_per_node"]) == (2, 4)
