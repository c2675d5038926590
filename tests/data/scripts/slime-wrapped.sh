#!/bin/bash
# Launchers before the program, and variables for it alone.
if ! command -v python3 >/dev/null; then echo "no python"; exit 1; fi
mkdir -p logs || exit 1
trap 'ray stop' EXIT
ulimit -n 65535
CUDA_VISIBLE_DEVICES=0,1,2,3 PYTHONPATH=/root/slime nohup env NCCL_DEBUG=WARN OPEN_TRAINING_INT4_FAKE_QAT_FLAG=1 \
  torchrun --nproc_per_node 4 --tensor-model-parallel-size 99 train.py \
  --hf-checkpoint /m/Dense-4B --actor-num-gpus-per-node 4 --tensor-model-parallel-size 1 \
  --rollout-batch-size 8 --n-samples-per-prompt 8 --colocate --fp16 "$@" > logs/out.txt 2>&1 &
