python -m torch.distributed.run --nproc_per_node=4 --nnodes=${SLURM_NNODES} pretrain_gpt.py \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 \
  --tensor-model-parallel-size $TP_SIZE --micro-batch-size 4 --global-batch-size 64 --fp16
