import argparse

from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="meta-llama/Llama-3.2-1B-Instruct")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--max_length", type=int, default=1024)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--deepspeed")
    return parser.parse_args()


def main(args):
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="bfloat16")
    reference = None
    peft = None
    if args.lora:
        from peft import LoraConfig

        peft = LoraConfig(r=32)
    else:
        reference = AutoModelForCausalLM.from_pretrained(args.model, dtype="bfloat16")
    config = DPOConfig(
        f"runs/{args.model.split('/')[-1]}",
        per_device_train_batch_size=args.batch_size,
        max_length=args.max_length,
        gradient_checkpointing=True,
        deepspeed=args.deepspeed,
    )
    trainer = DPOTrainer(
        model, reference, args=config, train_dataset=load_dataset("a/b"), peft_config=peft
    )
    trainer.train()


if __name__ == "__main__":
    main(parse())
