#!/bin/bash
set -x
PROJECT_DIR="$(pwd)"
CONFIG_PATH="$PROJECT_DIR/config"
function now() { date '+%d-%H-%M'; }
python3 -m verl.trainer.main_ppo \
    --config-path="$CONFIG_PATH" \
    --config-name='tool_grpo' \
    data.train_batch_size=64 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct \
    trainer.experiment_name=tool-$(now) \
    trainer.n_gpus_per_node=8 "$@"
