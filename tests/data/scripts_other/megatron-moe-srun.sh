#!/bin/bash
#SBATCH --nodes=4
options=" \
  --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 \
  --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 --expert-model-parallel-size 8 \
  --expert-tensor-parallel-size 1 \
  --seq-length 4096 --micro-batch-size 2 --global-batch-size 512 --fp8-format hybrid --bf16 \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
  --optimizer-cpu-offload --optimizer adam"
run_cmd="python -u /workspace/megatron-lm/pretrain_gpt.py ${options}"
srun -l --container-image nvcr.io/nvidia/pytorch:25.04-py3 sh -c "${run_cmd}"
