#!/bin/bash
export CUDA_VISIBLE_DEVICES=0,1,2,3
ACCELERATE_LOG_LEVEL=info accelerate launch \
    --config_file accelerate/zero3.yaml \
    --num_processes 4 \
    examples/scripts/grpo_vlm.py \
    --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct \
    --output_dir out \
    --gradient_checkpointing \
    --dtype bfloat16 \
    --max_prompt_length 2048 --max_completion_length 1024 \
    --use_vllm --vllm_mode colocate --vllm_gpu_memory_utilization 0.25 \
    --use_peft --lora_r=32 --lora_target_modules "q_proj", "v_proj" \
    --num_generations 8 --per_device_train_batch_size 4 --gradient_accumulation_steps=8 \
    --beta 0.04 \
    --log_completions
