#!/usr/bin/env bash
# The engine is chosen as a group of configurations; values come as dictionaries, deletions and both plus signs.
ray job submit --no-wait --runtime-env="${RUNTIME_ENV}" -- python3 -m verl.trainer.main_ppo \
    model_engine=megatron \
    'actor_rollout_ref.actor.megatron={tensor_model_parallel_size: 2, context_parallel_size: 2, sequence_parallel: true}' \
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=4 \
    actor_rollout_ref.model.path=${MODEL_ROOT}/Qwen3-14B \
    actor_rollout_ref.model.lora.rank=32 \
    '~actor_rollout_ref.actor.ppo_max_token_len_per_gpu' \
    ++actor_rollout_ref.actor.use_kl_loss=true \
    'actor_rollout_ref.rollout.name="vllm"' \
    actor_rollout_ref.rollout.max_model_len='${data.max_response_length}' \
    data.max_response_length=4096 \
    trainer.nnodes=${WORLD_NODES} trainer.n_gpus_per_node=8 trainer.default_local_dir=/ckpt/${RUN_ID}
