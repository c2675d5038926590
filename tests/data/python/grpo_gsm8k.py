import os
import re

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
MAX_PROMPT = 256
MAX_TOTAL = 1024
USE_PEFT = os.environ.get("USE_PEFT", "1") == "1"

if "Llama" in MODEL:
    output_dir, run_name = "outputs/Llama-1B-GRPO", "Llama-1B-GRPO-gsm8k"
else:
    output_dir, run_name = "outputs/Qwen-1.5B-GRPO", "Qwen-1.5B-GRPO-gsm8k"


def extract(text: str) -> str:
    return text.split("<answer>")[-1].split("</answer>")[0].strip()


def correctness(prompts, completions, answer, **kwargs) -> list[float]:
    found = [extract(completion[0]["content"]) for completion in completions]
    return [2.0 if each == wanted else 0.0 for each, wanted in zip(found, answer)]


def digits(completions, **kwargs):
    return [0.5 if re.fullmatch(r"\d+", extract(each[0]["content"])) else 0.0 for each in completions]


dataset = load_dataset("openai/gsm8k", "main")["train"].map(lambda row: {"prompt": row["question"]})

common = dict(learning_rate=5e-6, adam_beta2=0.99, warmup_ratio=0.1)
training_args = GRPOConfig(
    output_dir=output_dir,
    run_name=run_name,
    bf16=True,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=4 * 2,
    num_generations=8,
    max_prompt_length=MAX_PROMPT,
    max_completion_length=MAX_TOTAL - MAX_PROMPT,
    save_steps=100,
    beta=0.04,
    use_vllm=False,
    optim="adamw_8bit" if torch.cuda.is_available() else "adamw_torch",
    **common,
)
peft_config = LoraConfig(
    r=16,
    lora_alpha=64,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
    task_type="CAUSAL_LM",
)
model = AutoModelForCausalLM.from_pretrained(
    MODEL, torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2", device_map=None
).to("cuda")
tokenizer = AutoTokenizer.from_pretrained(MODEL)

trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[digits, correctness],
    args=training_args,
    train_dataset=dataset,
    peft_config=peft_config if USE_PEFT else None,
)
trainer.train()
