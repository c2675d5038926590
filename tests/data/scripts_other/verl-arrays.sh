#!/usr/bin/env bash
# Arrays of overrides, defaults within defaults, a runner that may be another program.
set -xeuo pipefail
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-8B}
NNODES=${NNODES:-2}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-${GPUS:-8}}
max_prompt_length=$((1024 * 2))
max_response_length=$(( (1024 * 16) / 2 ))
ROLLOUT_TP=${ROLLOUT_TP:-4}

DATA=(
    algorithm.adv_estimator=grpo
    data.train_files="['$HOME/data/a/train.parquet', '$HOME/data/b/train.parquet']"
    data.train_batch_size=512
    data.max_prompt_length=${max_prompt_length}
    data.max_response_length=${max_response_length}
    data.truncation='error'
)
ACTOR=(
    actor_rollout_ref.model.path="${MODEL_PATH}"
    actor_rollout_ref.model.enable_gradient_checkpointing=True
    actor_rollout_ref.actor.ppo_mini_batch_size=128
    actor_rollout_ref.actor.use_dynamic_bsz=True
    # actor_rollout_ref.actor.ppo_max_token_len_per_gpu=99999
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((max_prompt_length + max_response_length))
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001
    actor_rollout_ref.actor.fsdp_config.param_offload=False
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True
    actor_rollout_ref.actor.strategy=fsdp2
)
ROLLOUT=(
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.tensor_model_parallel_size=${ROLLOUT_TP}
    actor_rollout_ref.rollout.gpu_memory_utilization=0.55
    actor_rollout_ref.rollout.n=8
    actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=4096
)
TRAINER=(
    trainer.logger='["console","wandb"]'
    trainer.n_gpus_per_node=${NGPUS_PER_NODE}
    trainer.nnodes=${NNODES}
    trainer.save_freq=20
    trainer.test_freq=5
)
EXTRA=()
LAUNCH=(python3)
if [ "${VERL_USE_UV:-1}" != 0 ]; then
    LAUNCH=(uv run --frozen --no-sync python3)
fi
"${LAUNCH[@]}" -m verl.trainer.main_ppo "${DATA[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${TRAINER[@]}" "${EXTRA[@]}" "$@"
