#!/bin/bash
# Miles with its FSDP trainer.
MODEL=${MODEL:-Dense-1.7B}
COMMON=(
   --train-backend fsdp --gradient-checkpointing
   --attn-implementation flash_attention_2
   --update-weight-buffer-size $((256 * 1024 * 1024))
   --train-env-vars '{"PYTORCH_CUDA_ALLOC_CONF":"expandable_segments:True"}'
)
python3 train.py --hf-checkpoint /models/${MODEL} --ref-load /models/${MODEL} "${COMMON[@]}" \
  --num-rollout 4 --rollout-batch-size 8 --n-samples-per-prompt 8 --rollout-max-response-len 256 \
  --use-kl-loss --kl-loss-coef 0.00 --optimizer adam --use-dynamic-batch-size --max-tokens-per-gpu 9216 \
  --actor-num-nodes 1 --actor-num-gpus-per-node 1 --colocate --sglang-mem-fraction-static 0.4
