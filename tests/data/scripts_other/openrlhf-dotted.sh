#!/bin/bash
NUM_GPUS=${1:-4}
MODEL=Qwen/Qwen3-4B-Thinking-2507
python3 -m openrlhf.cli.train_ppo_ray \
   --actor.num_nodes 1 --actor.num_gpus_per_node $((NUM_GPUS)) \
   --vllm.num_engines $NUM_GPUS \
   --vllm.gpu_memory_utilization 0.95 \
   --train.async_enable \
   --train.dynamic_batch_enable --train.max_tokens_per_gpu 16192 \
   --train.batch_size 1024 --train.micro_batch_size 1 \
   --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 \
   --rollout.max_new_tokens 64000 --data.max_len 74240 \
   --algo.kl.init_coef 0 \
   --algo.advantage.estimator reinforce_baseline \
   --actor.model_name_or_path "$MODEL" \
   --actor.gradient_checkpointing_enable \
   --ds.zero_stage 3 --ds.param_dtype bf16 --ds.lora.rank 64 --ds.ring_attn_size 2 \
   --ckpt.save_steps 10 --eval.steps -1
