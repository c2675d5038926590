#!/bin/bash
if [ "$#" -lt 2 ]; then
    echo "Usage: run.sh <nproc_per_node> <save_path> [other_configs...]"
    exit 1
fi
nproc_per_node=$1
save_path=$2
shift 2
torchrun --standalone --nnodes=1 --nproc_per_node=$nproc_per_node \
     -m verl.trainer.fsdp_sft_trainer \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.max_length=2048 \
    data.micro_batch_size_per_gpu=4 \
    data.train_batch_size=64 \
    model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct \
    model.lora_rank=32 \
    trainer.default_local_dir=$save_path $@
