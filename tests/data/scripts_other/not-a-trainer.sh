# Looks like training and is not: merging, serving, data.
python3 -m verl.model_merger merge --backend fsdp --local_dir ckpt --target_dir out
python3 -m verl.trainer.main_generation model.path=Qwen/Qwen3-8B rollout.n=1
trl vllm-serve --model Qwen/Qwen3-8B --tensor_parallel_size 4
echo "python3 -m verl.trainer.main_ppo trainer.nnodes=4"
