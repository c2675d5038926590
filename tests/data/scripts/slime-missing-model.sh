#!/bin/bash
# The model file is not there.
SCRIPT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "${SCRIPT_DIR}/scripts/models/not-there.sh"
source ~/.bashrc
python3 train.py ${MODEL_ARGS[@]} --hf-checkpoint ${HOME}/Dense-4B --rollout-batch-size 8 --n-samples-per-prompt 2 \
  --colocate --optimizer sgd
