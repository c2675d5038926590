#!/bin/bash
# One function a mode; the mode is the script's argument, with a default.
MODE="${1:-broadcast}"
RANK="${2:-0}"
NODES=8 PER_NODE=8 TRAIN=32
run_mode() {
    local mode="$1"
    ARGS=(--hf-checkpoint "/root/models/Mix-30B" --actor-num-nodes $((TRAIN / PER_NODE)) --actor-num-gpus-per-node ${PER_NODE})
    if [ "$mode" = "p2p" ]; then
        BUFFER=$(python3 -c "print(int(1.5 * 1024 ** 3))")
        ARGS+=(--update-weight-transfer-mode p2p)
    else
        BUFFER=$((4 * 1024 * 1024 * 1024))
        ARGS+=(--update-weight-transfer-mode broadcast)
    fi
    ARGS+=(--update-weight-buffer-size ${BUFFER} --pipeline-model-parallel-size 4 --expert-model-parallel-size 8)
    if [ "$RANK" -eq 0 ]; then
        ray start --head
        while true; do
            SEEN=$(ray status | grep -c GPU)
            if [ "$SEEN" -ge "$NODES" ]; then break; fi
            sleep 5
        done
        ray job submit -- python3 train.py "${ARGS[@]}" --rollout-num-gpus 32 --rollout-num-gpus-per-engine 8 \
            --rollout-batch-size 4 --n-samples-per-prompt 4 --sglang-cuda-graph-bs 1 2 4 8 16
    else
        ray start --address=head:6379
        while [ ! -f /tmp/done ]; do sleep 10; done
    fi
}
run_mode "$MODE"
