"""Megatron-LM: launchers, flags by which it is known, and the run."""

import pytest

from headway.facts.blocks import Mamba
from headway.facts.shapes import by_name
from headway.facts.workload import Float8
from headway.foreign import megatron_lm, runs
from headway.foreign.found import Found
from headway.foreign.shape_flags import shape_of
from headway.foreign.shell import read_text
from headway.units import GIB

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


COMMON = "--hidden-size 768 --num-attention-heads 12 --vocab-size 29184 --micro-batch-size 4 --bf16"


def test_t5_has_an_encoder_of_its_own_length():
    said = found(
        f"torchrun --nproc_per_node 8 pretrain_t5.py {COMMON} --encoder-num-layers 12 --decoder-num-layers 6 "
        "--encoder-seq-length 512 --decoder-seq-length 128"
    )
    shape = shape_of(said)
    assert (shape.encoder_layers, shape.layers, shape.head_bias) == (12, 6, True)
    run = runs.workload(said, shape)
    assert (run.rollout.longest, run.trainer.megatron.encoder_length) == (128, 512)


def test_bert_has_its_head_and_a_decoder_has_none():
    flags = f"{COMMON} --num-layers 12 --seq-length 512"
    assert shape_of(found(f"torchrun pretrain_bert.py {flags}")).masked_head
    for program in ("pretrain_gpt.py", "pretrain_gpt5_bertha.py"):
        plain = shape_of(found(f"torchrun {program} {flags}"))
        assert (plain.masked_head, plain.encoder_layers, plain.letters) == (False, 0, "")


def test_offloading_of_modules_that_cannot_be_told_is_noted():
    said = found(f"torchrun pretrain_gpt.py {FLAGS} --fine-grained-activation-offloading --offload-modules $WHICH")
    run = runs.workload(said, by_name("qwen3-4b"))
    assert run.trainer.megatron.offload_modules == ()
    assert any("which activations are offloaded cannot be told" in note for note in run.unknown)
    half = found(
        f"torchrun pretrain_gpt.py {FLAGS} --fine-grained-activation-offloading --offload-modules core_attn "
        "--activation-offload-fraction 0.5"
    )
    run = runs.workload(half, by_name("qwen3-4b"))
    assert run.trainer.megatron.offload_fraction == 0.5
    assert not any("offloaded" in note for note in run.unknown)


@pytest.mark.parametrize("flag", ["hybrid-layer-pattern", "hybrid-override-pattern"])
def test_a_hybrid_is_written_by_letters(flag):
    said = found(
        f"torchrun pretrain_mamba.py {COMMON} --{flag} 'M-M-|M*-' --seq-length 512 --mamba-num-heads 16 "
        "--mamba-state-dim 64"
    )
    shape = shape_of(said)
    assert (shape.letters, shape.layers) == ("M-M-|M*-", 7)
    assert runs.workload(said, shape).layout.virtual_pipeline == 2
    assert shape.mamba == Mamba(heads=16, head_dim=64, groups=8, state=64)


def test_fsdp_offloading_and_deferral_are_read():
    said = found(
        f"torchrun pretrain_gpt.py {FLAGS} --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params "
        "--fine-grained-activation-offloading --offload-modules core_attn moe_act nonsense "
        "--defer-embedding-wgrad-compute --wgrad-deferral-limit 3"
    )
    ways = runs.workload(said, by_name("qwen3-30b-a3b")).trainer.megatron
    assert (ways.fsdp, ways.offload_modules) == ("optim_grads_params", ("core_attn", "moe_act"))
    assert (ways.defer_gradients, ways.deferral_limit) == (True, 3)
    plain = runs.workload(found(f"torchrun pretrain_gpt.py {FLAGS} --offload-modules core_attn"), by_name("qwen3-4b"))
    assert (plain.trainer.megatron.fsdp, plain.trainer.megatron.offload_modules) == ("", ())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--fp8-format hybrid", Float8("delayed")),
        ("--fp8-format e4m3 --fp8-recipe blockwise", Float8("blockwise")),
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather", Float8("mxfp8", gather=True)),
        # near misses: a recipe alone switches nothing on
        ("--fp8-recipe blockwise", None),
        ("", None),
    ],
)
def test_float8(flags, expected):
    said = found(
        f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {FLAGS} {flags} --tensor-model-parallel-size 2"
    )
    assert runs.workload(said, by_name("qwen3-4b")).trainer.float8 == expected


@pytest.mark.parametrize(
    ("flags", "graphs", "cache"),
    [
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn", "transformer_engine", 0),
        ("--external-cuda-graph", "transformer_engine", 0),
        ("--enable-cuda-graph --perform-rl-step", "local", 40),
        ("--perform-rl-step --inference-dynamic-batching-buffer-size-gb 20", "", 20),
        # near misses: none are captured, and a cache without generation is none
        ("--cuda-graph-impl none", "", 0),
        ("--inference-dynamic-batching-buffer-size-gb 20", "", 0),
    ],
)
def test_graphs_and_the_cache_of_generation(flags, graphs, cache):
    said = found(
        f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {FLAGS} {flags} --tensor-model-parallel-size 2"
    )
    run = runs.workload(said, by_name("qwen3-4b"))
    megatron = run.trainer.megatron
    assert (megatron.graphs, megatron.inference_cache) == (graphs, cache * GIB)
    assert any("te_version" in note for note in run.unknown) == (graphs == "transformer_engine")


def test_a_number_beyond_all_numbers_is_unclear():
    assert found(f"torchrun pretrain_gpt.py {FLAGS} --tensor-model-parallel-size 1e99932").unknown["tp"]


def test_an_unknown_recipe_is_said():
    said = found(
        f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {FLAGS} --fp8-format e4m3 --fp8-recipe custom "
        "--tensor-model-parallel-size 2"
    )
    run = runs.workload(said, by_name("qwen3-4b"))
    assert run.trainer.float8 == Float8("tensorwise")
    assert any("--fp8-recipe custom is not planned" in note for note in run.unknown)
