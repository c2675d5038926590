#!/bin/bash
# The usual form: one array a topic, comments between and behind the words.
pkill -9 sglang
sleep 3
ray stop --force
set -ex
export PYTHONUNBUFFERED=1
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/dense-4b.sh"

CKPT_ARGS=(
   --hf-checkpoint /root/Dense-4B/
   #--hf-checkpoint /root/Dense-4B-FP8
   --ref-load /root/Dense-4B_torch_dist
   --load /root/Dense-4B_slime/
   --save /root/Dense-4B_slime/     # same folder, so a rerun goes on
   --save-interval 20
)
ROLLOUT_ARGS=(
   --prompt-data /root/math.jsonl
   --input-key prompt
   --apply-chat-template
   --num-rollout 3000
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 8192   # tokens
   #--rollout-max-response-len 16384

   --global-batch-size 256
   --balance-data
)
EVAL_ARGS=(
   --eval-interval 20
   --eval-prompt-data aime /root/aime.jsonl
   --n-samples-per-eval-prompt 16
   --eval-max-response-len 16384
)
PERF_ARGS=(
   --tensor-model-parallel-size 2
   --sequence-parallel
   --pipeline-model-parallel-size 1
   --context-parallel-size 1
   --expert-model-parallel-size 1
   --expert-tensor-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   # --micro-batch-size 4
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
)
GRPO_ARGS=(
   --advantage-estimator grpo
   --use-kl-loss
   --kl-loss-coef 0.00
   --kl-loss-type low_var_kl
)
OPTIMIZER_ARGS=(--optimizer adam --lr 1e-6 --weight-decay 0.1 # one line
   --adam-beta1 0.9)
SGLANG_ARGS=(
   --rollout-num-gpus-per-engine 2
   --sglang-mem-fraction-static 0.7
)
export MASTER_ADDR=${MASTER_ADDR:-"127.0.0.1"}
ray start --head --node-ip-address ${MASTER_ADDR} --num-gpus 8 --disable-usage-stats
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"env_vars": {"PYTHONPATH": "/root/Megatron-LM"}}' \
   -- python3 train.py \
   --actor-num-nodes 1 \
   --actor-num-gpus-per-node 8 \
   --colocate \
   ${MODEL_ARGS[@]} \
   ${CKPT_ARGS[@]} \
   ${ROLLOUT_ARGS[@]} \
   ${EVAL_ARGS[@]} \
   ${PERF_ARGS[@]} \
   ${GRPO_ARGS[@]} \
   ${OPTIMIZER_ARGS[@]} \
   ${SGLANG_ARGS[@]}
