#!/bin/bash
# Branches that hang on who runs it and where: what both sides say alike is known, the rest is not.
source "$(dirname "$0")/models/dense-4b.sh"
MODE=$1
GPU_COUNT=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
if [ "$MODE" = "long" ]; then
  LEN=32768; CAP=40960; GROUP=8
else
  LEN=8192;  CAP=40960; GROUP=8
fi
ARGS=(--rollout-batch-size 16 --n-samples-per-prompt $GROUP)
if [ -d /scratch/resume ]; then
  ARGS+=(--load /scratch/resume --use-kl-loss)
fi
case $MODE in
  short) ARGS+=(--tensor-model-parallel-size 2 --context-parallel-size 2) ;;
  long)  ARGS+=(--tensor-model-parallel-size 2 --context-parallel-size 8) ;;
  *) echo "usage: $0 short|long"; exit 2 ;;
esac
if [ -z "$CKPT" ]; then CKPT=/models/Dense-4B; fi
python3 train.py --hf-checkpoint $CKPT ${MODEL_ARGS[@]} "${ARGS[@]}" --actor-num-gpus-per-node $GPU_COUNT --colocate \
  --rollout-max-response-len $LEN --max-tokens-per-gpu $CAP --use-dynamic-batch-size --global-batch-size 128
