"""Host memory of other systems' trainers: what loading reads, what is offloaded, what a save gathers."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import rows_training
from headway.facts import machines
from headway.facts.shapes import by_name
from headway.facts.workload import Layout, Optimizer, Quant
from headway.foreign import openrlhf, presets, runs, trl, verl
from headway.foreign.shell import read_script
from headway.plan.ledger import Phase
from headway.plan.plan import DEVICE, HOST, plan
from headway.plan.verdict import judge

LLAMA = by_name("llama3-70b")
QWEN = by_name("qwen3-8b")
assert LLAMA is not None
assert QWEN is not None
EIGHT = ("layout.devices=8",)
OFFLOAD = (*EIGHT, "trainer.optimizer.offload=1")
GB = 10**9


def lines(run, phase, pool=HOST):
    return {line.item: line for line in plan(run).select(pool, phase)}


def torchtune(*overrides):
    return presets.workload(LLAMA, "torchtune", overrides)


def test_torchtune_saves_a_70b_model_in_more_memory_than_was_measured():
    """Reported for its 70B recipe with CPU offload on eight A100: about 350 GB while it trains and 750 GB while it
    saves (torchtune issue 2885), and out of memory in 1 TB (issue 1092)."""
    run = torchtune(*OFFLOAD)
    ledger = plan(run)
    save, train = ledger.peak_of(HOST, Phase.SAVE), ledger.peak_of(HOST, Phase.TRAIN)
    assert save.upper > 1000 * GB
    assert save.upper < 1.5 * 750 * GB
    assert 350 * GB < train.upper < save.bytes - 400 * GB


def test_rank_0_gathers_the_weights_and_both_moments_once():
    held = lines(torchtune(*EIGHT), Phase.SAVE)
    parameters = LLAMA.parameters()
    assert held["gathered weights"].bytes == 2 * parameters
    assert held["gathered optimizer"].bytes == pytest.approx(2 * 2 * parameters, rel=1e-6)


def test_nothing_is_gathered_where_each_rank_writes_its_part():
    held = lines(torchtune(*EIGHT, "gathers=nothing"), Phase.SAVE)
    assert not [name for name in held if name.startswith("gathered")]
    sharded = lines(presets.workload(LLAMA, "fsdp2", EIGHT), Phase.SAVE)
    assert not [name for name in sharded if name.startswith("gathered")]


def test_on_one_device_torchtune_copies_the_weights_alone():
    held = lines(presets.workload(QWEN, "torchtune"), Phase.SAVE)
    assert held["gathered weights"].bytes == 2 * QWEN.parameters()
    assert "gathered optimizer" not in held


def test_offloaded_shards_are_pinned_in_powers_of_two():
    """A second count, from the widths of a block: every tensor's eighth, rounded up."""
    held = lines(torchtune(*OFFLOAD), Phase.TRAIN)
    hidden, ffn, kv = 8192, 28672, 1024
    block = [hidden * hidden] * 2 + [hidden * kv] * 2 + [hidden * ffn] * 3
    tables = [128256 * hidden] * 2
    rounded = sum(1 << (each * 2 // 8 - 1).bit_length() for each in block * 80 + tables)
    assert held["offloaded weights"].bytes == pytest.approx(8 * rounded, rel=1e-3)
    assert held["offloaded gradients"].bytes == held["offloaded weights"].bytes
    # moments are made like a parameter, and what is like a pinned tensor is not pinned
    assert held["offloaded optimizer"].bytes == pytest.approx(4 * LLAMA.parameters(), rel=1e-6)


def test_torchtune_copies_queries_and_keys_of_each_rank_as_it_loads():
    held = lines(torchtune(*EIGHT), Phase.LOAD)
    assert held["projections being loaded"].bytes == 8 * 80 * 8192 * (8192 + 1024) * 2


def zero(stage, **how):
    trainer = presets.workload(QWEN, "trl").trainer
    optimizer = Optimizer(step="fused", master=True, offload=how.pop("offload", 0.0))
    trainer = replace(trainer, param_dtype="bf16", compute_dtype=None, grad_dtype="bf16", optimizer=optimizer, **how)
    layout = Layout(devices=8, shards=8) if stage == 3 else Layout(devices=8, replicas=8, zero="gradients")
    return replace(presets.workload(QWEN, "trl"), trainer=trainer, layout=layout)


def test_zero_offload_holds_what_deepspeed_counts_for_it():
    """`estimate_zero3_model_states_mem_needs`: 18 B a parameter on the CPU with parameters, of which 2 are theirs;
    DeepSpeed's formula lacks the second buffer of gradients."""
    held = lines(zero(3, offload=1.0, offload_parameters=True), Phase.STEP)
    parameters = QWEN.parameters()
    both = held["offloaded optimizer"].bytes + held["offloaded gradients"].bytes
    assert both == pytest.approx((16 + 2) * parameters, rel=1e-6)
    assert held["offloaded weights"].bytes == pytest.approx(2 * parameters, rel=1e-6)
    # pinned flat buffers are powers of two
    assert held["offloaded optimizer"].upper > held["offloaded optimizer"].bytes


def test_an_offloaded_optimizer_of_zero_3_leaves_the_parameters_on_the_device():
    here = lines(zero(3, offload=1.0), Phase.STEP, DEVICE)
    assert here["weights"].bytes == pytest.approx(2 * QWEN.parameters() / 8, rel=1e-6)
    assert "offloaded weights" not in lines(zero(3, offload=1.0), Phase.STEP)
    assert "weights" not in lines(zero(3, offload=1.0, offload_parameters=True), Phase.STEP, DEVICE)


def test_zero_3_gathers_weights_alone_and_zero_2_copies_them_on_every_rank():
    third, second = lines(zero(3), Phase.SAVE), lines(zero(2), Phase.SAVE)
    assert third["gathered weights"].bytes == 2 * QWEN.parameters()
    assert "gathered checkpoint" not in third
    assert second["checkpoint staging"].bytes == 8 * 2 * QWEN.parameters()
    assert "gathered weights" not in second


def test_every_process_of_a_plain_trainer_reads_the_model_it_casts():
    run = presets.workload(QWEN, "hf", ("layout.devices=8", "layout.replicas=8"))
    assert lines(run, Phase.LOAD)["model being loaded"].bytes == 8 * 4 * QWEN.parameters()
    half = replace(run, trainer=replace(run.trainer, param_dtype="bf16"))
    assert lines(half, Phase.LOAD)["model being loaded"].bytes == 0
    packed = presets.workload(QWEN, "qlora")
    assert packed.trainer.quant == Quant("nf4", double=True)
    assert "model being loaded" not in lines(packed, Phase.LOAD)


FSDP = """
distributed_type: FSDP
fsdp_config:
  fsdp_version: {version}
  fsdp_offload_params: {offload}
  {more}
num_machines: 1
num_processes: 8
mixed_precision: bf16
"""
SFT = "trl/scripts/sft.py --model_name_or_path Qwen/Qwen3-8B --output_dir o --max_length 2048"


def script(tmp_path: Path, command: str, **files: str):
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    path = tmp_path / "run.sh"
    path.write_text(command + "\n")
    found = trl.read(read_script(path))
    assert found is not None
    return runs.workload(found, QWEN)


@pytest.mark.parametrize(
    ("version", "more", "item"),
    [
        (1, "fsdp_state_dict_type: FULL_STATE_DICT", "gathered checkpoint"),
        (1, "fsdp_state_dict_type: SHARDED_STATE_DICT", None),
        (1, "fsdp_sync_module_states: true", "gathered checkpoint"),
        (2, "fsdp_state_dict_type: FULL_STATE_DICT", "gathered checkpoint"),
        (2, "fsdp_sync_module_states: true", None),
    ],
)
def test_accelerates_file_says_what_is_gathered(tmp_path, version, more, item):
    run = script(
        tmp_path, f"accelerate launch --config_file a.yaml {SFT}",
        a_yaml=FSDP.format(version=version, offload="false", more=more),
    )  # fmt: skip
    held = lines(run, Phase.SAVE)
    if item is None:
        assert not [name for name in held if name.startswith("gathered")]
    else:
        # weights in fp32, then both moments in fp32
        assert held[item].bytes == pytest.approx(8 * QWEN.parameters(), rel=1e-6)
    assert "offloaded weights" not in held


def test_offloaded_parameters_of_fsdp_are_in_the_host_with_the_optimizer(tmp_path):
    run = script(
        tmp_path, f"accelerate launch --config_file a.yaml {SFT}",
        a_yaml=FSDP.format(version=2, offload="true", more="fsdp_cpu_ram_efficient_loading: false"),
    )  # fmt: skip
    held = lines(run, Phase.STEP)
    assert held["offloaded optimizer"].bytes == pytest.approx(8 * QWEN.parameters(), rel=1e-6)
    assert held["offloaded weights"].bytes >= 4 * QWEN.parameters()
    assert "weights" not in lines(run, Phase.TRAIN, DEVICE)
    assert lines(run, Phase.LOAD)["model being loaded"].bytes == 8 * 4 * QWEN.parameters()


@pytest.mark.parametrize("gathers", [True, False])
def test_deepspeeds_file_says_whether_weights_are_gathered(tmp_path, gathers):
    zero = {"stage": 3, "stage3_gather_16bit_weights_on_model_save": gathers}
    run = script(
        tmp_path,
        f"torchrun --nproc_per_node 8 {SFT} --deepspeed z.json",
        z_json=json.dumps({"zero_optimization": zero}),
    )
    assert ("gathered weights" in lines(run, Phase.SAVE)) is gathers


def test_a_measured_host_row_counts_the_save_unless_training_alone_was_measured():
    model = {"layers": 80, "hidden": 8192, "ffn": 28672, "heads": 64, "kv_heads": 8, "head_dim": 128, "vocab": 128256}
    trainer = {
        "system": "torchtune", "mode": "full", "param_dtype": "bf16", "micro_batch": 2, "seq_len": 2048,
        "optimizer": {"kind": "adamw", "state_dtype": "bf16", "cpu_offload": 1.0},
    }  # fmt: skip
    row = {"model": model, "trainer": trainer, "layout": {"gpus": 8, "fsdp_shards": 8}}
    save = rows_training.predict({**row, "measured": {"quantity": "host", "phase": "save"}})
    train = rows_training.predict({**row, "measured": {"quantity": "host", "phase": "train"}})
    assert save.upper > 750 * GB > train.upper - 100 * GB > 350 * GB


def test_a_host_of_512_gib_does_not_fit_and_a_larger_one_does():
    run = torchtune(*OFFLOAD)
    machine = machines.by_name("8xh100-80")
    assert judge(run, machines.with_host(machine, 512 << 30)).kind == "does not fit"
    assert judge(run, machines.with_host(machine, 1100 << 30)).kind == "fits"


VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.n_gpus_per_node=8"


def rl(tmp_path: Path, reader, command: str):
    path = tmp_path / "run.sh"
    path.write_text(command + "\n")
    found = reader.read(read_script(path))
    assert found is not None
    ledger = plan(runs.workload(found, QWEN), machines.by_name("8xh100-80"))
    return {line.item: line for line in ledger.select(HOST, Phase.SAVE)}


def test_verl_gathers_weights_where_it_writes_a_hugging_face_model(tmp_path):
    each = rl(
        tmp_path, verl, f"{VERL} actor_rollout_ref.actor.checkpoint.save_contents=['model','optimizer','extra']"
    )
    assert "gathered weights" not in each
    assert each["checkpoint staging"].bytes > 8 * 8 * QWEN.parameters() // 8
    both = rl(tmp_path, verl, f"{VERL} actor_rollout_ref.actor.checkpoint.save_contents=['model','hf_model']")
    assert both["gathered weights"].bytes == 4 * QWEN.parameters()


def test_openrlhf_gathers_the_weights_that_it_saves(tmp_path):
    command = "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-8B --actor_num_gpus_per_node 8 "
    held = rl(tmp_path, openrlhf, command + "--zero_stage 3 --colocate_all_models")
    assert held["gathered weights"].bytes == 2 * QWEN.parameters()


def test_what_torchao_measured_of_sharded_training_ran_in_torchtitan():
    model = {"layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128, "vocab": 128256}
    trainer = {
        "system": "torchao", "mode": "pretrain", "param_dtype": "fp32", "compute_dtype": "fp8", "seq_len": 8192,
        "recompute": {"granularity": "selective"}, "compile": True,
    }  # fmt: skip
    row = {"model": model, "trainer": trainer, "layout": {"gpus": 8, "fsdp_shards": 8}}
    row["measured"] = {"quantity": "reserved", "phase": "train"}
    titan = {**row, "trainer": {**trainer, "system": "fsdp2"}}
    assert rows_training.predict(row) == rows_training.predict(titan)
    # what runs on one device is torchao's own loop
    alone = {**row, "layout": {"gpus": 1}}
    assert rows_training.workload(alone).trainer.system == "torchao"


def test_ranks_that_have_the_whole_model_each_load_it_beside_an_engine(tmp_path):
    command = "trl/scripts/grpo.py --model_name_or_path Qwen/Qwen3-8B --use_vllm --output_dir o"

    def loading(launcher: str) -> int:
        path = tmp_path / "run.sh"
        path.write_text(f"{launcher} {command}\n")
        found = trl.read(read_script(path))
        assert found is not None
        ledger = plan(runs.workload(found, QWEN), machines.by_name("4xh100-80"))
        return sum(line.bytes for line in ledger.select(HOST, Phase.LOAD) if line.item == "model being loaded")

    whole = 4 * QWEN.parameters()
    assert loading("accelerate launch --multi_gpu --num_machines 1 --num_processes 4") == 4 * whole
    assert loading("accelerate launch --use_fsdp --num_machines 1 --num_processes 4") == whole
