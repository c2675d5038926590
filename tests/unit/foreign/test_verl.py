"""verl: Hydra's overrides and files, what they leave to the machine, and the run that they make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.facts.shapes import by_name
from headway.foreign import hydra, runs, verl
from headway.foreign.found import Found
from headway.foreign.shell import read_script, read_text
from headway.foreign.shell.values import known


def found(overrides: str, module: str = "verl.trainer.main_ppo") -> Found:
    read = verl.read(read_text(f"python3 -m {module} {overrides}"))
    assert read is not None
    return read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8), ("1e-6", 1e-6), ("-1", -1), ("true", True), ("Null", None), ("'8'", "8"), ("a,b", "a,b"),
        ("[a, 'b c', 3]", ["a", "b c", 3]), ("{a: 1, b: {c: x}}", {"a": 1, "b": {"c": "x"}}), ("[", "["),
        ("{a 1}", "{a 1}"), ("['${oc.env:A,b}']", ["${oc.env:A,b}"]), ("[1, [2, []]]", [1, [2, []]]),
        ("_1_000", "_1_000"), ("[}", "[}"), ("{a:]", "{a:]"), ("1_000", 1000), ("", None),
        ("/data/x=y.parquet", "/data/x=y.parquet"),
    ],
)  # fmt: skip
def test_values_of_overrides(text, value):
    assert hydra.value(text) == value


@given(st.text(alphabet="[]{}'\",:=$ a1.\\", max_size=60))
def test_any_value_is_read(text):
    hydra.value(text)


def test_the_last_of_two_overrides_wins_and_signs_do_not_matter():
    said = found("data.train_batch_size=1 ++data.train_batch_size=2 +trainer.nnodes=3 '~trainer.nnodes'")
    assert said.settings["rollout_batch"] == 2
    assert said.settings["nodes"] is None
    assert said.derived["nodes"] == 1


def test_a_table_sets_the_keys_within_it():
    said = found("'actor_rollout_ref.rollout={n: 4, name: sglang}' actor_rollout_ref.rollout.n=6")
    assert (said.settings["samples_per_prompt"], said.settings["engine"]) == (6, "sglang")


def test_interpolations():
    made = hydra.config(
        [
            known(text)
            for text in ("a.b=${c}", "c=${d.e}x", "d.e=4", "f=${oc.select:g,7}", "h=${oc.env:HOME}", "i=${i}")
        ]
    )
    assert made.get("a.b").raw == "4x"
    assert made.get("f").raw == 7
    assert "asks the machine" in made.get("h").why
    assert "refers to" in made.get("i").why


def test_references_that_double_at_every_step_stop():
    words = [known(f"k{index}=" + f"${{k{index + 1}}}" * 8) for index in range(40)]
    assert hydra.config(words).get("k0").why


def test_relative_references_of_files(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\n"
        "actor_rollout_ref:\n"
        "  actor: {ppo_mini_batch_size: 16, ppo_micro_batch_size_per_gpu: '${.ppo_mini_batch_size}'}\n"
        "  rollout: {n: '${...data.samples}'}\n"
        "data: {samples: 3}\n"
    )
    (tmp_path / "run.sh").write_text("python3 -m verl.trainer.main_ppo --config-path=. --config-name=mine\n")
    said = verl.read(read_script(tmp_path / "run.sh", tmp_path), tmp_path)
    assert said is not None
    assert said.settings["micro_batch"] == 16
    assert said.settings["samples_per_prompt"] == 3


def test_a_file_above_the_tree_is_not_read(tmp_path):
    (tmp_path / "secret.yaml").write_text("trainer: {nnodes: 9}\n")
    inner = tmp_path / "repo"
    inner.mkdir()
    (inner / "run.sh").write_text("python3 -m verl.trainer.main_ppo --config-path=.. --config-name=secret\n")
    said = verl.read(read_script(inner / "run.sh", inner), inner)
    assert said is not None
    assert "nodes" in said.unknown


def test_what_hangs_on_a_variable_is_unknown_and_the_rest_is_not():
    said = found('data.train_batch_size=$BATCH actor_rollout_ref.model.path="$ROOT/Qwen3-4B" trainer.nnodes=2 $EXTRA')
    assert "BATCH" in said.unknown["rollout_batch"]
    assert said.settings["model_name"] == "Qwen3-4B"
    assert said.settings["nodes"] == 2
    assert said.settings["gpus_per_node"] is None


def test_an_array_of_a_file_that_is_missing_may_hold_any_key():
    said = verl.read(read_text('source missing.sh\npython3 -m verl.trainer.main_ppo trainer.nnodes=2 "${ARGS[@]}"'))
    assert said is not None
    assert said.settings["nodes"] == 2
    assert "rollout_batch" in said.unknown


@pytest.mark.parametrize(
    ("overrides", "loaded"),
    [
        ("algorithm.adv_estimator=grpo", False),
        ("actor_rollout_ref.actor.use_kl_loss=True", True),
        ("actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.0", True),
        ("algorithm.use_kl_in_reward=True", True),
        ("actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.model.lora_rank=8", False),
    ],
)
def test_when_a_reference_is_loaded(overrides, loaded):
    assert found(overrides).settings["reference_loaded"] is loaded


def test_a_fork_with_keys_of_its_own_is_not_verl():
    assert verl.read(read_text("python3 -m verl.trainer.main config=a.yaml worker.rollout.n=5")) is None


def test_the_run_of_the_fsdp_trainer():
    said = found(
        "actor_rollout_ref.model.path=Qwen/Qwen3-4B actor_rollout_ref.actor.use_dynamic_bsz=True "
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=9000 "
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 "
        "actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.actor.use_kl_loss=True "
        "actor_rollout_ref.actor.fsdp_config.fsdp_size=8 actor_rollout_ref.rollout.free_cache_engine=False "
        "actor_rollout_ref.rollout.max_num_seqs=99 trainer.nnodes=2 trainer.n_gpus_per_node=8"
    )
    run = runs.workload(said, by_name("qwen3-4b"))
    assert (run.trainer.cap, run.trainer.rows) == (18000, 0)
    assert (run.trainer.offload, run.trainer.reference, run.trainer.param_dtype) == ("parameters", "host", "fp32")
    assert (run.layout.shards, run.layout.replicas, run.layout.context) == (8, 2, 2)
    assert run.engine is not None
    assert (run.engine.releases, run.engine.max_seqs, run.engine.tensor_parallel) == ("nothing", 99, 2)
    assert any(
        text.startswith("rollout_batch = 1024 (not in the script; verl 0.7's default)") for text in run.unknown
    )
    assert any("critic" in text for text in run.unknown)


def test_the_run_of_the_megatron_trainer():
    core = "actor_rollout_ref.actor.megatron"
    said = found(
        f"model_engine=megatron {core}.tensor_model_parallel_size=2 {core}.expert_model_parallel_size=8 "
        f"{core}.pipeline_model_parallel_size=2 +{core}.override_transformer_config.recompute_granularity=selective "
        f"'+{core}.override_transformer_config.recompute_modules=[core_attn, moe_act]' "
        f"+{core}.override_transformer_config.num_layers_in_last_pipeline_stage=20 "
        "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.ref.megatron.param_offload=True trainer.nnodes=4"
    )
    run = runs.workload(said, by_name("qwen3-30b-a3b"))
    assert run.trainer.system == "verl-megatron"
    assert run.trainer.recompute.modules == ("core_attn", "moe_act")
    assert run.trainer.reference == "host"
    assert (run.layout.tensor, run.layout.pipeline, run.layout.expert_parallel) == (2, 2, 8)
    assert run.layout.last_stage_layers == 20
    assert run.layout.sequence_parallel


def test_offload_targets_stand_over_the_older_switches():
    core = "actor_rollout_ref.actor.megatron"
    said = found(f"{core}.param_offload=True {core}.offload.param.target=none {core}.offload.optimizer.target=disk")
    assert (said.settings["param_offload"], said.settings["optimizer_offload"]) == (False, True)


def test_supervised_fine_tuning_by_megatron():
    read = verl.read(
        read_text(
            "torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer engine=megatron engine.context_parallel_size=2 "
            "engine.tensor_model_parallel_size=4 model.path=Qwen/Qwen3-8B data.max_length=4096"
        )
    )
    assert read is not None
    told = [read.settings[key] for key in ("trainer_backend", "tp", "cp", "pp", "max_total_len", "gpus_per_node")]
    assert told == ["megatron", 4, 2, None, 4096, 8]


OLD = """
actor_rollout_ref:
  model: {path: none, enable_gradient_checkpointing: false}
  actor: {ppo_micro_batch_size: 64, ppo_max_token_len_per_gpu: 9000, strategy: null}
"""


def _tree(folder, text):
    place = folder / "verl" / "trainer" / "config"
    place.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("")
    (place / "ppo_trainer.yaml").write_text(text)
    script = folder / "run.sh"
    script.write_text("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-4B")
    read = verl.read(read_script(script))
    assert read is not None
    return read


def test_the_defaults_of_an_old_copy_in_the_tree_hold(tmp_path):
    said = _tree(tmp_path, OLD)
    assert said.value("recompute") is False
    assert said.value("max_tokens_per_gpu") == 9000
    assert said.value("model_name") == "Qwen3-4B"
    assert said.places["recompute"].file == "verl/trainer/config/ppo_trainer.yaml"


def test_a_copy_whose_defaults_are_in_groups_is_not_looked_into(tmp_path):
    said = _tree(tmp_path, "defaults: [actor@actor_rollout_ref.actor: dp_actor, _self_]\n" + OLD)
    assert said.value("recompute") == "gradient_checkpointing"
    assert said.value("max_tokens_per_gpu") == 16384


def test_what_the_command_says_stands_above_a_copy(tmp_path):
    _tree(tmp_path, OLD)
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-4B "
        "actor_rollout_ref.model.enable_gradient_checkpointing=True"
    )
    read = verl.read(read_script(script))
    assert read is not None
    assert read.value("recompute") == "gradient_checkpointing"
