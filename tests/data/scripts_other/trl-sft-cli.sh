trl sft --model-name-or-path Qwen/Qwen3-1.7B --dataset_name trl-lib/Capybara \
    --max-length 4096 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \
    --packing true --use_peft --load_in_4bit --bf16 False --optim adamw_bnb_8bit \
    --no_gradient_checkpointing --save_steps=0.25 --eval_strategy steps --eval_steps 100 \
    --accelerate_config zero2 --num_processes 2
