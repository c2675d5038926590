#!/bin/bash
# JSON, here-documents, parts of strings, and prose with flags in it.
cat <<'TEXT'
Run with --tensor-model-parallel-size 64 --colocate for large models.
python3 train.py --tensor-model-parallel-size 32 --rollout-batch-size 999 --hf-checkpoint /x --num-rollout 1
TEXT
echo "python3 train.py --tensor-model-parallel-size 16 --rollout-batch-size 7 --n-samples-per-prompt 3 --colocate"
: <<'SKIP'
PERF_ARGS=(--max-tokens-per-gpu 1)
SKIP
CKPT=/data/models/Dense-4B-v2.tar
NAME=$(basename "${CKPT%.tar}")
SHORT=${NAME#Dense-}          # 4B-v2
SIZE=${SHORT%%-*}             # 4B
NUM=${SIZE/B/}                # 4
LOWER=${NAME,,}
PART=${NAME:0:5}
ENV_JSON="{\"env_vars\": {\"PYTHONPATH\": \"/root/slime\", \"NOTE\": \"--tensor-model-parallel-size 128\"}}"
read -r -d '' LONG <<EOF || true
--rollout-max-response-len 4096 --rollout-max-prompt-len 1024
EOF
CONFIG='{"a": [1, 2], "b": "--save-interval 3"}'
ray job submit --runtime-env-json "$ENV_JSON" -- python3 train.py \
  --hf-checkpoint "/data/models/${NAME}" --tensor-model-parallel-size ${NUM} --train-env-vars "$CONFIG" \
  --apply-chat-template-kwargs '{"enable_thinking": false}' --multimodal-keys={\"image\":\"file\"} \
  --save "/out/${LOWER}/${PART}" --rollout-batch-size 8 --n-samples-per-prompt 8 \
  --save-interval 100 --eval-prompt-data --eval-interval 10 --prompt-data '' \
  --num-rollout 10 --actor-num-gpus-per-node ${#PART} --max-tokens-per-gpu "${LONG:27:4}" --use-dynamic-batch-size
