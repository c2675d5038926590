#!/bin/bash
# PPO with a critic, FP8 layers, KL in the reward.
declare -A LENGTHS=([short]=4096 [long]=16384)
declare -i STEPS=4
WHICH=long
readonly WHICH
typeset -a PRECISE=(--fp8-format e4m3 --fp8-recipe blockwise --bf16)
python3 train.py --advantage-estimator ppo --kl-coef 0.05 --hf-checkpoint /m/Dense-32B-FP8 "${PRECISE[@]}" \
  --rollout-max-response-len ${LENGTHS[$WHICH]} --eval-max-response-len "${LENGTHS[short]}" \
  --num-steps-per-rollout $STEPS --rollout-batch-size 128 --n-samples-per-prompt 4 --recompute-activations \
  --actor-num-nodes 2 --rollout-num-gpus 16 --ref-load /m/Dense-32B_dist
