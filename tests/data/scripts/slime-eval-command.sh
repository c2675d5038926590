#!/bin/bash
# The command is built up as a text, and started by eval, in the background.
CMD="python3 train_async.py"
CMD+=" --hf-checkpoint /m/Dense-4B"
CMD="$CMD --actor-num-gpus-per-node 4 --rollout-num-gpus 4"
add() { CMD="${CMD} $*"; }
add --rollout-batch-size 8
add --n-samples-per-prompt 4 --use-kl-loss --kl-loss-coef 0.001
OPTS=("--kl-loss-type" "low_var_kl")
CMD="${CMD} ${OPTS[*]}"
eval "$CMD --rollout-max-response-len 2048" > train.log 2>&1 &
wait
