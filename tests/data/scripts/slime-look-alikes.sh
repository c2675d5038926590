#!/bin/bash
# Other servers beside the trainer have flags that look like its own.
CUDA_VISIBLE_DEVICES=6,7 python3 -m sglang.launch_server --model-path /m/Judge-32B --tp 2 --mem-fraction-static 0.9 &
sglang serve --model /m/Judge-7B --tp 8 --rollout-batch-size 1 &
vllm serve /m/Other --tensor-parallel-size 4 --max-model-len 100000 &
python3 tools/convert_hf_to_torch_dist.py --hf-checkpoint /m/Dense-4B --save /m/Dense-4B_dist \
  --tensor-model-parallel-size 16 --num-layers 1
pip install slime==0.2 --no-deps
grep -- "--tensor-model-parallel-size 5" notes.txt
# python3 train.py --tensor-model-parallel-size 6 --rollout-batch-size 6 --n-samples-per-prompt 6
source "${0%/*}/models/dense-4b.sh"
python3 train.py "${MODEL_ARGS[@]}" --hf-checkpoint /m/Dense-4B --rollout-batch-size 24 \
  --n-samples-per-prompt 8 --num-rollout 5 --actor-num-gpus-per-node 6 --colocate
python3 tools/convert_torch_dist_to_hf.py --input-dir /out --num-layers 2 --hidden-size 3
