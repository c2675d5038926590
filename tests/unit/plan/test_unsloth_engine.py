"""vLLM as Unsloth starts it: few sequences where little is left for the cache, and its share as the script has it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli.app import app
from headway.facts.machines import by_name
from headway.facts.shapes import table
from headway.facts.workload import Engine
from headway.foreign.launched import workload
from headway.foreign.readers import read_run
from headway.plan.engines import as_unsloth_runs_it
from headway.plan.ledger import Phase
from headway.plan.planned import Planned, examine
from headway.units import GIB

# Unsloth's public notebook of GRPO with Phi-4, which runs on the T4 of a free Colab
PHI_4 = """
from unsloth import FastLanguageModel
from trl import GRPOConfig, GRPOTrainer
max_seq_length, lora_rank = 1024, 16
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Phi-4", max_seq_length = max_seq_length, load_in_4bit = True, fast_inference = True,
    max_lora_rank = lora_rank, gpu_memory_utilization = {share},
)
model = FastLanguageModel.get_peft_model(
    model, r = lora_rank, target_modules = ["gate_proj", "up_proj", "down_proj"], lora_alpha = lora_rank,
    use_gradient_checkpointing = "unsloth",
)
args = GRPOConfig(
    optim = "paged_adamw_8bit", per_device_train_batch_size = 1, gradient_accumulation_steps = 1, num_generations = 6,
    max_prompt_length = 256, max_completion_length = max_seq_length - 256, max_steps = 100,
)
trainer = GRPOTrainer(model = model, processing_class = tokenizer, reward_funcs = f, args = args, train_dataset = d)
trainer.train()
"""


def planned(folder: Path, share: float, machine: str = "t4") -> Planned:
    path = folder / "phi.py"
    path.write_text(PHI_4.format(share=share))
    where = by_name(machine).without_ray()
    return examine(workload(read_run(path), machine=where), where)


@pytest.mark.parametrize(("left", "tokens", "seqs"), [
    (1, 2048, 8), (3, 2048, 16), (7, 4096, 32), (14, 6144, 64), (60, 8192, 128), (100, 8192, 256),
])  # fmt: skip
def test_what_is_left_decides_how_much_runs_at_once(left: int, tokens: int, seqs: int) -> None:
    shape = table()["qwen3-4b"]
    found = as_unsloth_runs_it(shape, Engine("vllm", 0.5, shared=True), left * GIB, longest=2048)
    assert (found.max_batched_tokens, found.max_seqs) == (tokens, seqs)
    # a longest sample is a batch of its own, and what a script sets stays
    long = as_unsloth_runs_it(shape, Engine("vllm", 0.5, shared=True), left * GIB, longest=32768)
    assert long.max_batched_tokens == 32768
    own = Engine("vllm", 0.5, shared=True, max_seqs=4)
    assert as_unsloth_runs_it(shape, own, left * GIB, longest=2048) == own


def test_a_public_notebook_starts_where_it_is_known_to_run(tmp_path: Path) -> None:
    found = planned(tmp_path, 0.7)
    assert found.outcome.kind == "tight"
    assert not found.outcome.refusals
    host = {line.item for line in found.ledger.select("node[0].host", Phase.LOAD)}
    assert "model being loaded" not in host
    assert not any("bf16" in text for text in found.workload.unknown), "it takes fp16 there by itself"


def test_a_share_below_the_weights_is_refused_in_the_script_s_own_words(tmp_path: Path) -> None:
    assert planned(tmp_path, 0.5).outcome.refusals
    text = " ".join(CliRunner().invoke(app, ["plan", str(tmp_path / "phi.py"), "--machine", "t4"]).output.split())
    assert "gpu_memory_utilization 0.5: leaves a KV pool of 0 B" in text
    assert "gpu_memory_utilization = 0.5: leaves a KV pool" in text
    for word in ("sglang", "0.48", "--gpu"):
        assert word not in text
