#!/bin/bash
MODEL=Qwen/Qwen2.5-1.5B-Instruct
export USE_PEFT=0
accelerate launch --num_processes 4 --num_machines 1 dpo_argparse.py --model $MODEL --batch-size 1 \
    --deepspeed zero3.json
