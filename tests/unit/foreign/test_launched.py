"""A script's settings as a shape and a Workload of the planner."""

from pathlib import Path

import pytest

from headway.errors import InputError
from headway.facts import shapes
from headway.facts.workload import Float8
from headway.foreign import presets
from headway.foreign.launched import workload
from headway.foreign.readers import read_run, settings_of
from headway.foreign.shape_flags import shape_of
from headway.foreign.shell import read_text

SCRIPTS = Path(__file__).parents[2] / "data" / "scripts"
TRAIN = "python3 train.py --num-rollout 7 --rollout-batch-size 8 --n-samples-per-prompt 4 --hf-checkpoint "


def found(text):
    return settings_of(read_text(text))


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        ("/root/Qwen3-4B", "qwen3-4B"),
        ("$HOME/models/Qwen3-30B-A3B-Thinking-2507/", "qwen3-30B-A3B"),
        ("Qwen/Qwen3-8B-FP8", "qwen3-8B"),
        ("/root/.cache/modelscope/hub/models/Qwen/Qwen3-0___6B", "qwen3-0.6B"),
        ("/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de289a04d12100db370d81485cdf75e47ca", "qwen3-0.6B"),
    ],
)
def test_the_checkpoint_s_name_tells_the_shape(checkpoint, name):
    assert shape_of(found(TRAIN + checkpoint)).name == name


def test_an_unknown_name_asks_for_the_model():
    with pytest.raises(InputError, match="pass --model NAME"):
        shape_of(found(TRAIN + "/root/never-heard-of-it"))


def flags_of(shape):
    """Megatron's model arguments for a shape of the table."""
    words = {
        "num-layers": shape.layers, "hidden-size": shape.hidden, "ffn-hidden-size": shape.ffn or None,
        "num-attention-heads": shape.heads, "num-query-groups": shape.kv_heads, "kv-channels": shape.head_dim,
        "vocab-size": shape.vocab, "num-experts": shape.experts or None,
        "moe-router-topk": shape.experts_per_token or None, "moe-ffn-hidden-size": shape.expert_ffn or None,
        "moe-shared-expert-intermediate-size": shape.shared_ffn or None,
        "moe-layer-freq": f"[0]*{shape.dense_layers}+[1]*{shape.layers - shape.dense_layers}",
    }  # fmt: skip
    if shape.mla is not None:
        mla = shape.mla
        words |= {
            "q-lora-rank": mla.q_lora or None, "kv-lora-rank": mla.kv_lora, "qk-head-dim": mla.qk_nope,
            "qk-pos-emb-head-dim": mla.qk_rope, "v-head-dim": mla.v,
        }  # fmt: skip
    switches = {
        "swiglu": shape.gated, "qk-layernorm": shape.qk_norm, "add-qkv-bias": shape.qkv_bias,
        "untie-embeddings-and-output-weights": not shape.tied, "multi-latent-attention": shape.mla is not None,
        "moe-router-enable-expert-bias": shape.router_bias,
    }  # fmt: skip
    line = [f"--{name} {value}" for name, value in words.items() if value is not None]
    return " ".join([*line, *(f"--{name}" for name, on in switches.items() if on)])


@pytest.mark.parametrize(
    "name", ["qwen3-4b", "qwen3-30b-a3b", "qwen2.5-7b", "llama3.1-8b-instruct", "deepseek-v3", "moonlight-16b-a3b"]
)
def test_a_shape_from_model_arguments_has_the_table_s_parameters(name):
    shape = shapes.by_name(name)
    assert shape is not None
    run = found(f"{TRAIN} /m/no-such-name {flags_of(shape)}")
    assert shape_of(run).parameters() == shape.parameters()


def test_fewer_layers_than_the_table_s():
    full = shapes.by_name("qwen3-4b")
    run = found(f"{TRAIN} /m/Qwen3-4B {flags_of(full).replace('--num-layers 36', '--num-layers 4')}")
    cut = shape_of(run)
    assert (cut.layers, cut.hidden, cut.tied) == (4, full.hidden, full.tied)
    assert cut.parameters() == full.parameters() - 32 * full.block_parameters()


def test_a_miles_script_is_the_preset_with_its_settings():
    """The same run as a script and as keys."""
    script = found(
        f"{TRAIN} /models/Qwen3-4B --train-backend fsdp --gradient-checkpointing --colocate --use-kl-loss "
        "--actor-num-gpus-per-node 1 --kl-loss-coef 0 --rollout-max-response-len 256 --use-dynamic-batch-size "
        "--max-tokens-per-gpu 4096 --sglang-mem-fraction-static 0.3 --global-batch-size 32"
    )
    keys = (
        "rollout.prompts=8", "rollout.samples=4", "rollout.max_answer=256", "trainer.cap=4096", "steps=7",
        "engine.memory_fraction=0.3",
    )  # fmt: skip
    shape = shapes.by_name("qwen3-4b")
    by_hand, read = presets.workload(shape, "miles-fsdp", keys), workload(script)
    assert read.trainer == by_hand.trainer
    assert (read.rollout, read.engine, read.layout) == (by_hand.rollout, by_hand.engine, by_hand.layout)
    assert read.steps == 7


def test_a_megatron_run_keeps_its_layout():
    run = workload(read_run(SCRIPTS / "slime-moe-async.sh"))
    layout = run.layout
    assert (layout.nodes, layout.devices, layout.tensor, layout.expert_parallel, layout.expert_tensor) == (
        1,
        4,
        4,
        4,
        1,
    )
    assert (run.trainer.recompute.granularity, run.trainer.cap, run.trainer.reference) == ("full", 20480, "none")
    assert (run.engine.colocated, run.engine.tensor_parallel, run.engine.devices) == (False, 4, 4)
    assert run.model.experts == 128


def test_offloaded_activations_are_read_where_they_are_switched_on():
    modules = "--offload-modules core_attn attn_proj --recompute-granularity selective"
    run = workload(found(f"{TRAIN} /m/Qwen3-4B {modules} --fine-grained-activation-offloading --colocate"))
    assert run.trainer.megatron.offload_modules == ("core_attn", "attn_proj")
    assert workload(found(f"{TRAIN} /m/Qwen3-4B {modules} --colocate")).trainer.megatron.offload_modules == ()


def test_what_the_script_does_not_tell_is_listed():
    run = workload(found(f"{TRAIN} /m/Qwen3-4B --tensor-model-parallel-size $TP --colocate"))
    assert any(text.startswith("tp: variable TP is not set") for text in run.unknown)


def test_overrides_win():
    run = workload(found(f"{TRAIN} /m/Qwen3-4B --train-backend fsdp --colocate"), overrides=["rollout.prompts=3"])
    assert run.rollout.prompts == 3


def test_float8_is_megatrons():
    flags = "--colocate --fp8-format e4m3 --fp8-recipe blockwise"
    run = workload(found(f"{TRAIN} /root/Qwen3-4B {flags}"))
    assert run.trainer.float8 == Float8("blockwise")
    # near misses: the FSDP trainer has no such flag, and none was given
    assert workload(found(f"{TRAIN} /root/Qwen3-4B {flags} --train-backend fsdp")).trainer.float8 is None
    assert workload(found(f"{TRAIN} /root/Qwen3-4B --colocate")).trainer.float8 is None


@pytest.mark.parametrize(
    ("program", "flags", "told"),
    [
        ("train.py", "--colocate", ("sync", 0, "dropped", "full", "sync")),
        ("train.py", "--rollout-num-gpus 4", ("sync", 4, "none", "full", "sync")),
        ("train_async.py", "--rollout-num-gpus 4 --async-save", ("one-step-off", 4, "none", "full", "async")),
        ("train_async.py", "--rollout-num-gpus 4 --fully-async", ("async", 4, "none", "full", "sync")),
        ("train.py", "--rollout-num-gpus 4 --update-weight-mode delta", ("sync", 4, "none", "delta", "sync")),
    ],
)
def test_who_works_at_the_same_time(program, flags, told):
    """`train_async.py` generates the next samples while it trains; roles that share devices take turns."""
    run = workload(found(TRAIN.replace("train.py", program) + f"/root/Qwen3-4B {flags}"))
    found_here = (run.mode, run.engine.devices, run.trainer.offload, run.engine.update, run.checkpoint)
    assert found_here == told
    assert run.trainer.copies == ("actor",)
