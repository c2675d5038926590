#!/bin/bash
# Settings from the environment, each with a default, some within defaults.
set -euo pipefail
MODEL_NAME=${MODEL_NAME:-Dense-4B}
GPUS=${GPUS:-${SLURM_GPUS_ON_NODE:-8}}
: "${NODES:=2}"
: ${TP:=4}
SEQ=${SEQ-4096}
LIMIT=${LIMIT:-$((SEQ * 2 + 512))}
FRACTION="${FRACTION:-"0.6"}"
EXTRA=${WITH_OFFLOAD:+--optimizer-cpu-offload}
KL=${KL:+--use-kl-loss}
BASE=${BASE:-/models}
source "${BASH_SOURCE[0]%/*}/models/dense-4b.sh"
python3 train.py \
  --hf-checkpoint "${BASE}/${MODEL_NAME}" \
  --actor-num-nodes $NODES --actor-num-gpus-per-node "$GPUS" --colocate \
  --tensor-model-parallel-size $TP \
  --rollout-batch-size ${BATCH:-16} --n-samples-per-prompt ${SAMPLES:-8} \
  --rollout-max-response-len ${SEQ} --rollout-max-context-len ${LIMIT} \
  --num-steps-per-rollout "${STEPS:-2}" \
  --sglang-mem-fraction-static=$FRACTION \
  --rollout-num-gpus-per-engine ${ENGINE:-$TP} \
  --max-tokens-per-gpu ${CAP:-$LIMIT} --use-dynamic-batch-size \
  ${EXTRA} $KL ${MODEL_ARGS[@]}
