#!/bin/bash
# A helper prints the model's arguments; how many GPUs there are is asked of the machine.
LINE="$(python3 miles/utils/model_args.py "mix-30b")" || exit 1
read -ra MODEL_ARGS <<< "${LINE}"
NUM_GPUS=${NUM_GPUS:-$(nvidia-smi -L | wc -l)}
if command -v rocm-smi >/dev/null; then BACKEND=triton; FRACTION=0.6; else BACKEND=fa3; FRACTION=0.6; fi
python3 train.py ${MODEL_ARGS[@]} --hf-checkpoint /m/Mix-30B --actor-num-gpus-per-node $NUM_GPUS --colocate \
  --sglang-attention-backend $BACKEND --sglang-mem-fraction-static $FRACTION --rollout-batch-size 8 \
  --n-samples-per-prompt 8 --expert-model-parallel-size 8 --rollout-num-gpus-per-engine $((NUM_GPUS / 2))
