#!/bin/bash
# Arguments with defaults, a usage text that ends the script, options in a loop.
usage() { echo "usage: $0 [--tp N] [--model PATH] --tensor-model-parallel-size 3"; exit 1; }
TP=2
MODEL=/m/Dense-4B
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP="$2"; shift 2 ;;
    --model) MODEL="$2"; shift 2 ;;
    -h|--help) usage ;;
    *) shift ;;
  esac
done
GROUP=${1:-8}
if [ ! -e "$MODEL" ]; then echo "no model"; usage; fi
if [ "$TP" -gt 8 ]; then usage; fi
[ -f /etc/hosts ] || { echo "no hosts"; exit 1; }
while ! ray status > /dev/null 2>&1; do sleep 5; done
exec python3 train.py --hf-checkpoint "$MODEL" --tensor-model-parallel-size "$TP" --rollout-batch-size 8 \
  --n-samples-per-prompt "$GROUP" --num-rollout 100 --colocate
