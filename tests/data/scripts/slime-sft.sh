#!/bin/bash
# Supervised fine-tuning: no answers are generated.
SRC="$(dirname "${BASH_SOURCE[0]}")/models"
MODEL_FILE="dense-4b.sh"
for f in "$SRC/$MODEL_FILE"; do source "$f"; done
NUM_GPUS=$(echo "0,1,2,3,4,5,6,7" | tr ',' '\n' | wc -l)
HALF=$(expr $NUM_GPUS / 2)
python3 train_async.py --actor-num-nodes 1 --actor-num-gpus-per-node ${NUM_GPUS} ${MODEL_ARGS[@]} \
  --hf-checkpoint /m/Dense-4B-Base --rollout-function-path slime.rollout.sft_rollout.generate_rollout \
  --prompt-data /d/sft.parquet --rollout-batch-size 128 --global-batch-size 128 --loss-type sft_loss \
  --debug-train-only --tensor-model-parallel-size $HALF --max-tokens-per-gpu 9216 --use-dynamic-batch-size
