deepspeed --include localhost:1,2,3 train_grpo.py --deepspeed config/ds_zero2.json \
   --model_name_or_path $MODEL --use_vllm False --num_generations 4 --max_completion_length 768 \
   --per_device_train_batch_size ${BS:-1} --bf16
