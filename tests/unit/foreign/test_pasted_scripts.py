"""A change in a Python script's own arguments, written there, gives the plan that was promised with it."""

from pathlib import Path

import pytest

from headway.facts.machines import by_name
from headway.foreign.launched import workload
from headway.foreign.readers import read_run
from headway.plan.plan import plan
from headway.plan.planned import Planned, examine
from headway.plan.verdict import tops

UNSLOTH = """
from unsloth import FastLanguageModel
from trl import GRPOConfig, GRPOTrainer
model, tok = FastLanguageModel.from_pretrained(
    model_name="unsloth/Qwen3-4B-Base", max_seq_length=2048, fast_inference=True, gpu_memory_utilization=0.7,
)
model = FastLanguageModel.get_peft_model(model, r=32, use_gradient_checkpointing="unsloth")
args = GRPOConfig(
    per_device_train_batch_size=1, gradient_accumulation_steps=1, num_generations=4, max_prompt_length=512,
    max_completion_length=1536, optim="adamw_8bit",
)
GRPOTrainer(model=model, processing_class=tok, reward_funcs=[score], args=args, train_dataset=data).train()
"""
SFT = """
from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer
model, tok = FastLanguageModel.from_pretrained(model_name="unsloth/Qwen3-14B", max_seq_length=8192, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16)
args = SFTConfig(per_device_train_batch_size=4, gradient_accumulation_steps=2, optim="adamw_8bit")
SFTTrainer(model=model, tokenizer=tok, train_dataset=data, args=args).train()
"""
TRL = """
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(
    per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=8, max_completion_length=1024,
    max_prompt_length=512,
)
GRPOTrainer(model="Qwen/Qwen3-1.7B", reward_funcs=score, args=args, train_dataset=data).train()
"""


def examined(folder: Path, text: str, machine: str) -> Planned:
    path = folder / "train.py"
    path.write_text(text)
    where = by_name(machine)
    return examine(workload(read_run(path), machine=where), where.without_ray())


@pytest.mark.parametrize(("text", "machine", "change", "edits"), [
    (
        UNSLOTH, "rtx4070", "per_device_train_batch_size=1, gradient_accumulation_steps=4",
        (("accumulation_steps=1", "accumulation_steps=4"),),
    ),
    (UNSLOTH, "rtx4070", "gpu_memory_utilization=0.7 -> 0.52", (("utilization=0.7", "utilization=0.52"),)),
    (SFT, "t4", "max_seq_length=1024", (("max_seq_length=8192", "max_seq_length=1024"),)),
    (
        SFT, "t4", "per_device_train_batch_size=1, gradient_accumulation_steps=8",
        (("batch_size=4", "batch_size=1"), ("accumulation_steps=2", "accumulation_steps=8")),
    ),
    (
        TRL, "a100-40", "per_device_train_batch_size=1, gradient_accumulation_steps=16",
        (("batch_size=8", "batch_size=1"), ("accumulation_steps=2", "accumulation_steps=16")),
    ),
])  # fmt: skip
def test_a_change_written_into_the_script_is_the_one_that_was_planned(
    tmp_path: Path, text: str, machine: str, change: str, edits: tuple[tuple[str, str], ...]
) -> None:
    found = examined(tmp_path, text, machine)
    tried = (*found.advice.remedies, *found.advice.without_effect)
    remedy = next(each for each in tried if each.text == change)
    for before, after in edits:
        assert before in text
        text = text.replace(before, after)
    edited = examined(tmp_path, text, machine)
    promised, held = tops(plan(remedy.workload, edited.machine)), tops(edited.ledger)
    # a share of the device is written with two digits
    assert held.keys() == promised.keys()
    for pool, sizes in promised.items():
        assert held[pool] == pytest.approx(sizes, rel=0.01)
