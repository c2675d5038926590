"""Megatron-LM: launchers, flags by which it is known, and the run."""

import pytest

from headway.facts.shapes import by_name
from headway.foreign import megatron_lm, runs
from headway.foreign.found import Found
from headway.foreign.shell import read_text

FLAGS = (
    "--num-layers 48 --hidden-size 2048 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 "
    "--global-batch-size 64 --bf16"
)


def found(command: str) -> Found:
    read = megatron_lm.read(read_text(command))
    assert read is not None
    return read


@pytest.mark.parametrize(
    ("launcher", "nodes", "devices"),
    [
        ("torchrun --nproc_per_node 8 --nnodes 2", 2, 8),
        ("torchrun --nproc-per-node=4 --nnodes=1", 1, 4),
        ("python -m torch.distributed.launch --nproc_per_node 2 --nnodes 1", 1, 2),
        ("srun -N 4 --gres gpu:8 python -u", 4, 8),
    ],
)
def test_launchers(launcher, nodes, devices):
    said = found(f"{launcher} pretrain_gpt.py {FLAGS}")
    assert (said.settings["nodes"], said.settings["gpus_per_node"]) == (nodes, devices)
    assert said.settings["num_layers"] == 48


def test_programs_that_do_not_train_are_left_alone():
    for program in ("tools/checkpoint/convert.py", "tools/preprocess_data.py", "tools/run_text_generation_server.py"):
        assert megatron_lm.read(read_text(f"python {program} {FLAGS} --tensor-model-parallel-size 2")) is None


def test_a_flag_without_value_does_not_swallow_the_next():
    said = found(f"torchrun pretrain_gpt.py --data-path --tensor-model-parallel-size 4 {FLAGS} --save")
    assert said.settings["tp"] == 4


def test_the_run():
    said = found(
        f"torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py {FLAGS} --tensor-model-parallel-size 2 "
        "--pipeline-model-parallel-size 2 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 "
        "--sequence-parallel --use-distributed-optimizer --optimizer-cpu-offload --optimizer-offload-fraction 0.5 "
        "--recompute-granularity selective --recompute-modules core_attn moe_act --cross-entropy-loss-fusion "
        "--hidden-dropout 0 --attention-dropout 0.0 --moe-token-dispatcher-type alltoall --moe-grouped-gemm "
        "--decoder-last-pipeline-num-layers 20"
    )
    run = runs.workload(said, by_name("qwen3-30b-a3b"))
    layout, trainer = run.layout, run.trainer
    assert (layout.ranks, layout.tensor, layout.pipeline, layout.expert_parallel, layout.expert_tensor) == (
        32,
        2,
        2,
        8,
        1,
    )
    assert layout.last_stage_layers == 20
    assert (trainer.optimizer.offload, trainer.optimizer.distributed) == (0.5, True)
    assert trainer.recompute.modules == ("core_attn", "moe_act")
    ways = trainer.megatron
    assert (ways.cross_entropy, ways.dispatcher, ways.hidden_dropout) == ("native", "alltoall", False)
    assert run.rollout.longest == 4096
