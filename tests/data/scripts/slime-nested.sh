#!/bin/bash
# The command stands in a text that another shell runs.
export CKPT=/m/Dense-32B
source "$(dirname "$0")/models/dense-32b.sh"
TP=8
LINE="--rollout-batch-size 128 --n-samples-per-prompt 16"
LINE="$LINE --global-batch-size 1024"
srun --nodes=4 --ntasks-per-node=1 --gpus-per-node=8 bash -c "
  cd /root/slime
  export EVAL=12
  python3 train.py --hf-checkpoint \$CKPT ${MODEL_ARGS[*]} \
    --tensor-model-parallel-size ${TP} --sequence-parallel $LINE \
    --eval-interval \$EVAL --actor-num-nodes 4 --actor-num-gpus-per-node 8 --colocate \
    --save-interval ${SAVE_EVERY:-25}
"
