"""From scripts to Workloads and verdicts: what differs from TRL's command line, and what is known of real runs."""

from pathlib import Path

import pytest

from headway.cli.inputs import read_case
from headway.errors import InputError
from headway.facts.workload import Workload
from headway.foreign.found import Found
from headway.foreign.python import read_program
from headway.foreign.runs import workload
from headway.foreign.shape_flags import shape_of
from headway.plan.planned import examine

DATA = Path(__file__).parents[3] / "data" / "python"


def planned(path: Path) -> Workload:
    found = read_program(path)
    return workload(found, shape_of(found))


def changed(tmp_path: Path, name: str, *pairs: tuple[str, str]) -> Workload:
    """The run of a script with texts exchanged."""
    text = (DATA / name).read_text()
    for before, after in pairs:
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "changed.py"
    path.write_text(text)
    return planned(path)


def test_a_sample_of_dpo_is_a_pair(tmp_path):
    dpo = changed(tmp_path, "dpo_argparse.py")
    assert (dpo.trainer.rows, dpo.trainer.reference) == (4, "copy")
    assert any("a chosen and a rejected sequence" in note for note in dpo.unknown)
    sft = changed(tmp_path, "dpo_argparse.py", ("DPO", "SFT"), ("model, reference, ", "model, "))
    assert (sft.trainer.rows, sft.trainer.reference) == (2, "none")


def test_a_model_for_classification_has_no_logits(tmp_path):
    plain = changed(tmp_path, "hf_trainer.py")
    few = changed(tmp_path, "hf_trainer.py", ("AutoModelForCausalLM", "AutoModelForSequenceClassification"))
    assert (plain.trainer.loss, few.trainer.loss) == ("logits", "value")


def test_what_is_prepared_for_training_in_4_bit_has_its_embeddings_in_fp32(tmp_path):
    prepared = changed(tmp_path, "sft_qlora.py")
    assert (prepared.trainer.param_dtype, prepared.trainer.compute_dtype) == ("fp32", "bf16")
    assert prepared.trainer.quant is not None
    assert prepared.trainer.quant.double
    plain = changed(
        tmp_path, "sft_qlora.py",
        ("model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=True)", "pass"),
    )  # fmt: skip
    assert plain.trainer.param_dtype == "bf16"


def test_transformers_arguments_without_bf16_compute_in_fp32(tmp_path):
    assert (
        changed(tmp_path, "hf_trainer.py", (', torch_dtype="auto"', ""), ("bf16=True, ", "")).trainer.compute_dtype
        is None
    )
    half = changed(tmp_path, "hf_trainer.py", (', torch_dtype="auto"', ""))
    assert (half.trainer.param_dtype, half.trainer.compute_dtype) == ("fp32", "bf16")


def test_what_nobody_knows_is_said_with_what_is_planned(tmp_path):
    run = changed(
        tmp_path, "grpo_gsm8k.py", ("peft_config if USE_PEFT else None", "adapters"), ("torch.bfloat16", "kind")
    )
    told = " ".join(run.unknown)
    assert run.trainer.lora is None
    assert "lora_rank = no adapter (assumed: " in told
    assert "adapters is set nowhere before" in told
    assert "dtype = fp32 (assumed: " in told
    plain = " ".join(changed(tmp_path, "grpo_gsm8k.py").unknown)
    assert "lora_rank = " not in plain
    assert "USE_PEFT is taken to be '1'" in plain


def test_peft_and_plain_trainers_have_their_own_habits(tmp_path):
    assert changed(tmp_path, "hf_trainer.py").trainer.system == "peft-script"
    full = changed(
        tmp_path,
        "hf_trainer.py",
        ("model = get_peft_model(model, LoraConfig(task_type=TaskType.CAUSAL_LM, r=8))", ""),
    )
    assert (full.trainer.system, full.trainer.lora) == ("hf-script", None)


def test_heads_that_are_saved_are_trained(tmp_path):
    run = changed(tmp_path, "grpo_gsm8k.py", ("lora_alpha=64,", "lora_alpha=64, modules_to_save=['lm_head'],"))
    assert run.trainer.lora is not None
    assert run.trainer.lora.embeddings
    plain = changed(tmp_path, "grpo_gsm8k.py")
    assert plain.trainer.lora is not None
    assert not plain.trainer.lora.embeddings


def test_unsloth_raises_a_batch_that_is_no_multiple(tmp_path):
    raised = changed(tmp_path, "unsloth_grpo.py")
    assert (raised.trainer.rows, raised.rollout.prompts) == (4, 2)
    assert any("Unsloth raises 1 to num_generations" in note for note in raised.unknown)
    kept = changed(tmp_path, "unsloth_grpo.py", ("num_generations = 4", "num_generations = 2"))
    assert (kept.trainer.rows, kept.rollout.prompts) == (1, 1)


def test_unsloths_engine_shares_the_weights_and_sleeps_in_standby(tmp_path):
    engine = changed(tmp_path, "unsloth_grpo.py").engine
    assert engine is not None
    assert (engine.shared, engine.releases, engine.memory_fraction) == (True, "weights+kv", 0.76)
    assert engine.quant is not None
    awake = changed(tmp_path, "unsloth_grpo.py", ('os.environ["UNSLOTH_VLLM_STANDBY"] = "1"', "pass")).engine
    assert awake is not None
    assert (awake.releases, awake.memory_fraction) == ("nothing", round(0.7 * 0.96, 3))
    alone = changed(tmp_path, "unsloth_grpo.py", ("fast_inference = True", "fast_inference = False"))
    assert alone.engine is None


def test_unsloths_checkpoints_stay_on_the_device_where_they_are_plain(tmp_path):
    assert changed(tmp_path, "unsloth_sft.py").trainer.system == "unsloth-kept"
    away = changed(
        tmp_path, "unsloth_sft.py", ("use_gradient_checkpointing = True", 'use_gradient_checkpointing = "unsloth"')
    )
    assert (away.trainer.system, away.trainer.checkpointing) == ("unsloth", True)
    none = changed(
        tmp_path, "unsloth_sft.py", ("use_gradient_checkpointing = True", "use_gradient_checkpointing = False")
    )
    assert not none.trainer.checkpointing


@pytest.mark.parametrize(
    ("model", "gigabytes"),
    # what Unsloth's documentation asks for in 4 bit at short lengths; a bound is never below it, nor far above
    [("Llama-3.2-3B-Instruct", 3.5), ("Llama-3.1-8B", 6), ("Phi-4", 8.5), ("Llama-3.3-70B-Instruct", 41)],
)
def test_bounds_around_what_unsloth_asks_for(tmp_path, model, gigabytes):
    path = tmp_path / "t.py"
    path.write_text(
        "from unsloth import FastLanguageModel\nfrom trl import SFTConfig, SFTTrainer\n"
        f"model, tokenizer = FastLanguageModel.from_pretrained('unsloth/{model}', max_seq_length=1024)\n"
        "model = FastLanguageModel.get_peft_model(model, r=16)\n"
        "SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=1)).train()\n"
    )
    case = read_case([str(path)], None, "h100-80", ("machine.host=256GiB",))
    ledger = examine(case.workload, case.machine)
    verdict = next(each for each in ledger.outcome.pools if "device" in each.pool)
    assert gigabytes * 1e9 * 0.9 < verdict.upper < gigabytes * 1e9 * 1.9


def test_remedies_are_in_the_scripts_own_words(tmp_path):
    path = tmp_path / "t.py"
    path.write_text(
        "from trl import SFTConfig, SFTTrainer\n"
        "SFTTrainer('Qwen/Qwen3-4B', args=SFTConfig(per_device_train_batch_size=16, max_length=4096)).train()\n"
    )
    case = read_case([str(path)], None, "rtx4090", ("machine.host=256GiB",))
    texts = [
        change.text for remedy in examine(case.workload, case.machine).advice.remedies for change in remedy.changes
    ]
    assert any(text.startswith("per_device_train_batch_size=") for text in texts)
    assert not any(text.startswith("--per_device") for text in texts)


def test_a_shared_engines_weights_are_counted_once(tmp_path):
    def of_engine(*pairs: tuple[str, str]) -> set[str]:
        path = tmp_path / "shared.py"
        text = (DATA / "unsloth_grpo.py").read_text()
        for before, after in pairs:
            text = text.replace(before, after)
        path.write_text(text)
        case = read_case([str(path)], None, "rtx4090", ("machine.host=256GiB",))
        lines = examine(case.workload, case.machine).ledger.lines
        return {line.item for line in lines if line.role == "engine" and "device" in line.pool}

    assert "KV pool" in of_engine()
    assert "weights" not in of_engine()
    apart = "from unsloth import FastLanguageModel"
    trl = of_engine(
        (apart, "from transformers import AutoModelForCausalLM as FastLanguageModel"),
        ("FastLanguageModel.get_peft_model(", "dict("), ("model, tokenizer = Fast", "tokenizer, model = 0, Fast"),
        ("model = dict(", "other = dict("), ('"unsloth/Qwen3-8B-unsloth-bnb-4bit"', '"Qwen/Qwen3-0.6B"'),
        ("num_generations = 4,", "num_generations = 4, use_vllm = True,"),
    )  # fmt: skip
    assert "weights" in trl, "an engine with a copy of its own"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("unsloth/Meta-Llama-3.1-8B-Instruct", "llama3.1-8B-Instruct"),
        ("meta-llama/Llama-3.1-8B", "llama3.1-8B-Instruct"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7B"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "qwen3-8B"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7B-v0.3"),
    ],
)
def test_models_trained_on_from_one_of_the_table_have_its_shape(name, shape):
    assert shape_of(Found("trl", {"model_name": name.rpartition("/")[2]}, model=name)).name == shape


@pytest.mark.parametrize("name", ["mistralai/Mistral-8x7B-Instruct-v0.3", "Qwen/Qwen2.5-Coder-99B"])
def test_models_with_another_shape_are_not_taken_for_them(name):
    with pytest.raises(InputError):
        shape_of(Found("trl", {"model_name": name.rpartition("/")[2]}, model=name))
