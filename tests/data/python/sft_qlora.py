import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer


def load(model_id, rank=64):
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    model = AutoModelForCausalLM.from_pretrained(
        model_id, quantization_config=quantization, device_map="auto", torch_dtype=torch.bfloat16
    )
    model.config.use_cache = False
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=True)
    model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=16, target_modules="all-linear"))
    return model, AutoTokenizer.from_pretrained(model_id)


def main():
    model, tokenizer = load("mistralai/Mistral-7B-v0.1")
    args = SFTConfig(output_dir="out")
    args.per_device_train_batch_size = 4
    args.gradient_accumulation_steps = 2
    args.max_length = 2048
    args.optim = "paged_adamw_32bit"
    trainer = SFTTrainer(model, args=args, train_dataset=load_dataset("json", data_files="d.json"))
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
