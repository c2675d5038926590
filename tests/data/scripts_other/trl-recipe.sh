#!/bin/bash
#SBATCH --nodes=2
MODEL=DeepSeek-R1-Distill-Qwen-1.5B
accelerate launch --config_file=accelerate/fsdp2.yaml --machine_rank $SLURM_PROCID \
  src/open_r1/grpo.py --config recipes/$MODEL.yaml --vllm_mode server --save_steps 25
trl vllm-serve --model deepseek-ai/$MODEL --tensor-parallel-size 4 --gpu_memory_utilization 0.85
