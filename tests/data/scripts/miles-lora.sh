#!/bin/bash
# Miles on Megatron with LoRA, engines apart, one position of an array taken out.
here="$( cd "$( dirname "${BASH_SOURCE[0]}" )" >/dev/null 2>&1 && pwd )"
source $here/../scripts/models/dense-4b.sh
ARGS=(--lora-rank 32 --lora-alpha 32 --target-modules all-linear --micro-batch-size 2)
ARGS=("${ARGS[@]:0:4}" "${ARGS[@]:6}")
PREFIX=("${MODEL_ARGS[@]/#--num-layers/--num-layers}")
RUN=(python3 train_async.py)
RUN+=("${PREFIX[@]}" "${ARGS[@]}")
"${RUN[@]}" --hf-checkpoint=/m/Dense-4B --train-backend megatron --rollout-num-gpus=4 --actor-num-gpus-per-node=4 \
  --rollout-batch-size=16 --n-samples-per-prompt=4 --rollout-max-response-len=1024 --save /ckpt/miles
