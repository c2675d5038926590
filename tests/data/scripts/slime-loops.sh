#!/bin/bash
# Loops over lists and numbers, names made by printf -v, seq, brace lists.
DIR=$(dirname "$(realpath "$0")")
. "$DIR/models/dense-4b.sh"
DATA=()
for shard in {1..3}; do DATA+=("/data/part-$shard.jsonl"); done
for pair in tensor-model:2 context:4 pipeline-model:1; do
  name=${pair%%:*}; size=${pair##*:}
  LAYOUT+=("--${name}-parallel-size" "$size")
done
total=0
for n in $(seq 2 2 6); do total=$((total + n)); done
for ((i=1, power=1; i<=10; i++)); do power=$((power * 2)); done
for i in 0 1 2; do printf -v "stage_$i" '%d' $((i * 10)); done
count=0
while [ $count -lt 5 ]; do count=$((count + 1)); [ $count -eq 4 ] && break; done
until (( count >= 6 )); do ((count++)); done
n=0
while read -r word; do n=$((n+1)); done <<< "only-one-line"
IFS=',' read -ra GPUS <<< "0,1,2,3"
python3 train.py ${MODEL_ARGS[@]} ${LAYOUT[@]} --hf-checkpoint /m/Dense-4B --prompt-data ${DATA[0]} \
  --rollout-batch-size $total --max-tokens-per-gpu $power --save-interval $stage_2 --eval-interval $count \
  --n-samples-per-prompt $((n + 3)) --actor-num-gpus-per-node ${#GPUS[@]} --colocate --use-dynamic-batch-size
