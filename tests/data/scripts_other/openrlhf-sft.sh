set -x
read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \
   --max_len 2048 \
   --dataset Open-Orca/OpenOrca \
   --train_batch_size 256 \
   --micro_train_batch_size 2 \
   --pretrain meta-llama/Meta-Llama-3-8B \
   --save_path ./checkpoint/llama3-8b-sft \
   --save_steps -1 \
   --zero_stage 2 \
   --bf16 \
   --flash_attn \
   --learning_rate 5e-6 \
   --gradient_checkpointing
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --num_gpus 8 --module $training_commands
fi
