#!/bin/bash
# Variables that nothing sets: the settings that hang on them are unknown, the rest is read.
python3 train.py \
  --hf-checkpoint $HOME/models/Dense-4B \
  --ref-load ${REF} \
  --save ${OUT_DIR}/run_$(date +%s) --save-interval ${SAVE_INTERVAL} \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size "$PP" \
  --context-parallel-size $((CP * 2)) \
  --rollout-batch-size ${BATCH?set BATCH} --n-samples-per-prompt 8 \
  --rollout-max-response-len $((MAX_LEN)) \
  --max-tokens-per-gpu ${CAP:-8192} --use-dynamic-batch-size --colocate $EXTRA_ARGS \
  --actor-num-nodes ${NODES:-1} --global-batch-size 64
