#!/bin/bash
set -euo pipefail
offload=True
train_tp=4 train_pp=2
train_ep=8
case ${PRECISION:-bf16} in
  fp8) quant=(+actor_rollout_ref.rollout.quantization=fp8) ;;
  *)   quant=() ;;
esac
python3 -m verl.trainer.main_ppo --config-path=config \
    --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo \
    data.train_batch_size=256 data.max_prompt_length=2048 data.max_response_length=8192 \
    actor_rollout_ref.model.path=/mnt/models/Qwen3-30B-A3B \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.actor.megatron.param_offload=${offload} \
    actor_rollout_ref.actor.megatron.optimizer_offload=${offload} \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=${train_tp} \
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=${train_pp} \
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=${train_ep} \
    actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1 \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform \
    ++actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.rollout.name=sglang \
    actor_rollout_ref.rollout.tensor_model_parallel_size=8 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.7 \
    actor_rollout_ref.rollout.n=16 \
    algorithm.use_kl_in_reward=False \
    trainer.n_gpus_per_node=8 trainer.nnodes=4 trainer.save_freq=20 trainer.test_freq=10 "${quant[@]}" \
    2>&1 | tee run.log
