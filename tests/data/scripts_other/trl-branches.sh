#!/bin/bash
if [ "$USE_VLLM" = "1" ]; then
  ENGINE="--use_vllm true --vllm_gpu_memory_utilization 0.4"
else
  ENGINE="--use_vllm false"
fi
python grpo_train.py --model_name_or_path Qwen/Qwen3-0.6B $ENGINE --num_generations 8 \
  --max_completion_length 256 --beta 0.0 $EXTRA_ARGS
