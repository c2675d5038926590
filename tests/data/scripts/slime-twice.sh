#!/bin/bash
# The same flag more than once: the last one counts. An element is overwritten by its index.
source ./models/dense-4b.sh
PERF=(--tensor-model-parallel-size 8 --max-tokens-per-gpu 4096 --recompute-granularity selective)
PERF[1]=2
PERF[3]=8192
PERF[${#PERF[@]}]=--use-dynamic-batch-size
EMPTY=()
unset NOTHING
CAPS=(1024 2048 4096)
python train.py ${MODEL_ARGS[@]} \
  --num-layers 20 \
  --hf-checkpoint /ckpt/Dense-4B-20layer --rollout-batch-size 4 --rollout-batch-size 64 \
  --n-samples-per-prompt 4 --n-samples-per-prompt=16 \
  --actor-num-gpus-per-node 2 --kl-coef 0.1 --kl-coef 0 ${EMPTY[@]} ${NOTHING[@]} \
  "${PERF[@]}" --micro-batch-size ${#CAPS[@]} --eval-max-response-len ${CAPS[1]} \
  --rollout-max-response-len "${CAPS[-1]}" --colocate --global-batch-size 128
