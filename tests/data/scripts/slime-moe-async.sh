#!/usr/bin/env bash
# Trainer and engines apart; the experts' list is made by a loop in the model file.
source "$(dirname "$0")/models/moe-30b.sh"
TRAIN_GPUS=4; ROLLOUT_GPUS=4
TP=4 EP=4
ARGS=()
ARGS+=(--hf-checkpoint "/data/Mix-30B-A3B" --ref-load "/data/Mix-30B-A3B_dist")
ARGS+=(--save "/data/out/" --save-interval $((10 * 5)))
ARGS+=(--num-rollout 300 --rollout-batch-size 8 --n-samples-per-prompt 8)
ARGS+=(--rollout-max-response-len $((32 * 1024)) --global-batch-size $((8 * 8)))
ARGS+=(--eval-interval 5 --eval-max-response-len $(( (16 + 16) * 1024 )))
ARGS+=(
  --tensor-model-parallel-size ${TP}  --sequence-parallel  --context-parallel-size 1
  --expert-model-parallel-size ${EP}  --expert-tensor-parallel-size 1
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
  --use-dynamic-batch-size --max-tokens-per-gpu 20480
)
ARGS+=(--advantage-estimator grpo --kl-loss-coef 0.00 --optimizer adam)
ARGS+=(--rollout-num-gpus-per-engine 4 --sglang-mem-fraction-static 0.5)
cd /root/slime && python3 train_async.py --actor-num-nodes 1 --actor-num-gpus-per-node ${TRAIN_GPUS} \
  --rollout-num-gpus ${ROLLOUT_GPUS} "${MODEL_ARGS[@]}" "${ARGS[@]}" 2>&1 | tee /tmp/train.log
