from datasets import load_dataset
from peft import LoraConfig, TaskType, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

model_name = "Qwen/Qwen2.5-7B"
tokenizer = AutoTokenizer.from_pretrained(model_name)
model = AutoModelForCausalLM.from_pretrained(model_name, torch_dtype="auto")
model = get_peft_model(model, LoraConfig(task_type=TaskType.CAUSAL_LM, r=8))
model.gradient_checkpointing_enable()
model.enable_input_require_grads()


def tokenize(row):
    return tokenizer(row["text"], truncation=True, max_length=1536, padding="max_length")


data = load_dataset("a/b")["train"].map(tokenize, batched=True)
trainer = Trainer(
    model=model,
    args=TrainingArguments(output_dir="out", per_device_train_batch_size=2, bf16=True, save_steps=200),
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
