set -x
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"working_dir": "/openrlhf"}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --ref_num_nodes 1 --ref_num_gpus_per_node 8 \
   --actor_num_nodes 1 \
   --actor_num_gpus_per_node 8 \
   --vllm_num_engines 4 \
   --vllm_tensor_parallel_size 2 \
   --colocate_all_models \
   --vllm_gpu_memory_utilization 0.6 \
   --pretrain OpenRLHF/Llama-3-8b-sft-mixture \
   --reward_pretrain OpenRLHF/Llama-3-8b-rm-700k \
   --micro_train_batch_size 8 \
   --train_batch_size 128 \
   --rollout_batch_size 1024 \
   --n_samples_per_prompt 4 \
   --eps_clip_low_high 0.2 0.27 \
   --prompt_max_len 1024 --generate_max_len 2048 \
   --zero_stage 3 \
   --bf16 \
   --init_kl_coef 1e-3 \
   --advantage_estimator group_norm \
   --use_kl_loss --kl_estimator k3 \
   --apply_chat_template --normalize_reward \
   --gradient_checkpointing --packing_samples \
   --adam_offload \
   --save_steps 20 \
   --vllm_enable_sleep --deepspeed_enable_sleep
# --ring_attn_size 4
# --lora_rank 16
