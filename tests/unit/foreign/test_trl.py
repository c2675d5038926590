"""TRL: flags over YAML, accelerate's and DeepSpeed's files, files that are no configuration, and the run."""

import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.facts.shapes import by_name
from headway.foreign import documents, runs, trl
from headway.foreign.documents import RefusedError
from headway.foreign.found import Found
from headway.foreign.shell import read_script, read_text

FLAGS = "--model_name_or_path Qwen/Qwen3-0.6B --num_generations 8 --max_completion_length 256"


def found(command: str, folder: Path | None = None) -> Found:
    if folder is None:
        read = trl.read(read_text(command))
    else:
        (folder / "run.sh").write_text(command)
        read = trl.read(read_script(folder / "run.sh", folder), folder)
    assert read is not None
    return read


@pytest.mark.parametrize(
    ("flags", "engine", "recompute"),
    [
        ("--use_vllm", "vllm", None),
        ("--use_vllm true --gradient_checkpointing", "vllm", "gradient_checkpointing"),
        ("--use-vllm=True --gradient-checkpointing false", "vllm", False),
        ("--use_vllm False --no_gradient_checkpointing", None, False),
        ("", None, None),
    ],
)
def test_on_off_flags_with_and_without_a_word(flags, engine, recompute):
    said = found(f"python grpo.py {FLAGS} {flags}")
    assert (said.settings["engine"], said.settings["recompute"]) == (engine, recompute)


def test_flags_stand_over_the_file(tmp_path):
    (tmp_path / "run.yaml").write_text("num_generations: 4\nbeta: 0.1\nsave_steps: 7\nbf16: true\n")
    said = found(f"python grpo.py --config run.yaml {FLAGS}", tmp_path)
    assert (said.settings["samples_per_prompt"], said.settings["save_interval"]) == (8, 7)
    assert (said.settings["kl_coef"], said.settings["reference_loaded"]) == (0.1, True)


def test_a_missing_file_leaves_what_the_flags_say(tmp_path):
    said = found(
        f"accelerate launch --config_file gone.yaml --num_processes 4 grpo.py {FLAGS} --config lost.yaml", tmp_path
    )
    assert said.settings["samples_per_prompt"] == 8
    assert "gone.yaml" in said.unknown["trainer_backend"]
    assert "gone.yaml" in said.unknown["zero_stage"]
    assert "lost.yaml" in said.unknown["engine"]
    assert len(said.unread) == 2


def test_processes_are_counted_over_machines(tmp_path):
    (tmp_path / "a.yaml").write_text("distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 8\n")
    said = found(f"accelerate launch --config_file a.yaml grpo.py {FLAGS}", tmp_path)
    assert (said.settings["nodes"], said.settings["gpus_per_node"]) == (2, 4)
    more = found(f"accelerate launch --config_file a.yaml --num_processes 16 grpo.py {FLAGS}", tmp_path)
    assert (more.settings["gpus_per_node"], more.settings["trainer_backend"]) == (8, "ddp")


@pytest.mark.parametrize("name", ["swift.py --rlhf_type grpo --use_vllm true --num_generations 4", "eval.py -m x"])
def test_other_programs_are_not_trl(name):
    assert trl.read(read_text(f"torchrun {name}")) is None


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch /tmp/headway-was-here']",
        "a: &a [*a, *a]\n" + "b: *a\n" * 100,
        "[" * 5000,
        "- " * 3000,
        "a: {" * 200,
        "a: 1\n\tb: 2",
        "just text",
        "? [x]\n: y",
        "a: " + "9" * 5000,
    ],
)
def test_files_that_are_no_configuration_are_refused_at_once(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    start = time.perf_counter()
    with pytest.raises(RefusedError):
        documents.table(tmp_path / "x.yaml")
    assert time.perf_counter() - start < 2
    assert not Path("/tmp/headway-was-here").exists()


def test_merged_tables_do_not_grow_without_end():
    levels = ["l0: &l0 {a0: 1, b0: 1, c0: 1, d0: 1}"]
    levels += [f"l{n}: &l{n} {{<<: [*l{n - 1}, *l{n - 1}, *l{n - 1}, *l{n - 1}]}}" for n in range(1, 16)]
    start = time.perf_counter()
    with suppress(RefusedError):
        assert len(documents.from_yaml("\n".join(levels))["l15"]) == 4
    assert time.perf_counter() - start < 2


@given(st.text(alphabet="{}[]&*!<>|-:,#%@'\"\\ \n\tab01", max_size=80))
def test_any_text_is_a_document_or_refused(text):
    for reader in (documents.from_yaml, documents.from_json):
        with suppress(RefusedError):
            reader(text)


def test_a_large_file_is_not_read(tmp_path):
    (tmp_path / "x.yaml").write_text("a: 1\n" * 100_000)
    with pytest.raises(RefusedError, match="larger"):
        documents.table(tmp_path / "x.yaml")


def test_the_run_under_zero_3_with_vllm():
    said = found(
        f"trl grpo --accelerate_config zero3 --num_processes 8 {FLAGS} --use_vllm --vllm_mode colocate --beta 0.01 "
        "--vllm_enable_sleep_mode --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --use_liger_kernel"
    )
    run = runs.workload(said, by_name("qwen3-0.6b"))
    assert (run.layout.shards, run.layout.replicas) == (8, 1)
    assert run.engine is not None
    assert (run.engine.colocated, run.engine.releases) == (True, "weights+kv")
    assert (run.trainer.param_dtype, run.trainer.optimizer.master, run.trainer.loss) == ("bf16", True, "fused")
    assert run.trainer.reference == "copy"
    assert (run.rollout.prompts, run.rollout.samples) == (8, 8)


def test_the_run_of_qlora_with_paged_moments():
    said = found(
        "trl sft --model_name_or_path Qwen/Qwen3-1.7B --use_peft --load_in_4bit --use_bnb_nested_quant --lora_r 8 "
        "--lora_target_modules q_proj k_proj --optim paged_adamw_8bit --max_length 2048 --dtype bfloat16"
    )
    run = runs.workload(said, by_name("qwen3-1.7b"))
    assert run.trainer.lora is not None
    assert (run.trainer.lora.rank, run.trainer.lora.targets) == (8, ("q_proj", "k_proj"))
    assert run.trainer.quant is not None
    assert (run.trainer.quant.kind, run.trainer.quant.double) == ("nf4", True)
    assert (run.trainer.optimizer.state_dtype, run.trainer.optimizer.paged) == ("int8", True)
    assert (run.engine, run.rollout.longest) == (None, 2048)


def test_a_missing_file_is_guessed_by_its_name_and_the_guess_is_told():
    said = found(f"accelerate launch --config_file recipes/zero3.yaml --num_processes 8 grpo.py {FLAGS} --bf16")
    assert "zero_stage" in said.unknown
    run = runs.workload(said, by_name("qwen3-0.6b"))
    assert run.layout.shards == 8
    assert any(text.startswith("zero_stage = 3 (assumed: recipes/zero3.yaml") for text in run.unknown)


def test_a_missing_deepspeed_file_hides_only_what_it_holds():
    said = found(f"torchrun --nproc_per_node 6 -m grpo --deepspeed ds_zero2.json {FLAGS} --use_vllm true")
    assert (said.settings["trainer_backend"], said.settings["gpus_per_node"]) == ("deepspeed", 6)
    assert said.settings["nodes"] is None
    assert "ds_zero2.json" in said.unknown["zero_stage"]
    assert runs.workload(said, by_name("qwen3-0.6b")).layout.zero == "gradients"


@pytest.mark.parametrize(
    ("program", "flags", "expected"),
    [
        ("sft", "--loss_type chunked_nll", ("hidden-chunks", 256, 4, 8)),
        ("sft", "--loss_type nll", ("logits", 0, 4, 8)),
        ("sft", "--use_liger_kernel", ("fused", 0, 4, 8)),
        ("dpo", "", ("logits", 0, 8, 16)),
        ("reward", "", ("value", 0, 8, 16)),
        # near misses: a loss of preferences is none of chunks, and a sample of KTO is one sequence
        ("dpo", "--loss_type chunked_nll", ("logits", 0, 8, 16)),
        ("kto", "", ("logits", 0, 4, 8)),
    ],
)
def test_what_the_loss_is_made_of(program, flags, expected):
    """A pair is two sequences of a micro-batch and of a step."""
    said = found(
        f"trl {program} --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 4 "
        f"--gradient_accumulation_steps 2 {flags}"
    )
    run = runs.workload(said, by_name("qwen3-0.6b"))
    trainer = run.trainer
    assert (trainer.loss, trainer.logprob_chunk, trainer.rows, run.rollout.prompts) == expected
    told = [note for note in run.unknown if "loss_type = nll" in note]
    assert bool(told) == (program == "sft" and not flags)


def test_a_script_that_leaves_the_loss_to_trl_is_told_what_newer_releases_do():
    run = runs.workload(found("trl sft --model_name_or_path Qwen/Qwen3-0.6B"), by_name("qwen3-0.6b"))
    assert any("trainer.loss=hidden-chunks" in note for note in run.unknown)
