#!/usr/bin/env bash
NNODES_TRAIN=2
NNODES_ROLLOUT=1
NGPUS=8
python3 -m verl.experimental.fully_async_policy.fully_async_main \
    --config-path=config --config-name=fully_async_ppo_trainer \
    data.train_batch_size=0 data.gen_batch_size=1 \
    data.max_prompt_length=2048 data.max_response_length=28672 \
    actor_rollout_ref.hybrid_engine=False \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-Math-7B \
    actor_rollout_ref.actor.strategy=fsdp2 \
    critic.strategy=fsdp2 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.mode=async \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.8 \
    algorithm.adv_estimator=grpo \
    trainer.nnodes="${NNODES_TRAIN}" trainer.n_gpus_per_node="${NGPUS}" \
    rollout.nnodes="${NNODES_ROLLOUT}" rollout.n_gpus_per_node="${NGPUS}" \
    trainer.save_freq=-1 trainer.test_freq=-1
