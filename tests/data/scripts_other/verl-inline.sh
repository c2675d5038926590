set -x
# One command with its overrides in line: the last of two wins, and an unset variable stays one.
export VLLM_ATTENTION_BACKEND=XFORMERS
gsm8k=$HOME/data/gsm8k/train.parquet
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae \
    data.train_files="$gsm8k" \
    data.return_raw_chat=$return_raw_chat \
    data.train_batch_size=1024 \
    data.max_prompt_length=512 \
    data.max_response_length=$RESPONSE_LENGTH \
    actor_rollout_ref.model.path=deepseek-ai/deepseek-llm-7b-chat \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.ppo_micro_batch_size=64 \
    actor_rollout_ref.actor.fsdp_config.param_offload=false \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    critic.model.path=deepseek-ai/deepseek-llm-7b-chat \
    critic.ppo_micro_batch_size_per_gpu=8 \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_ctrl.kl_coef=0.005 \
    trainer.logger=['console','wandb'] \
    trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l) \
    trainer.nnodes=1 trainer.save_freq=-1 \
    trainer.total_epochs=15 $@
