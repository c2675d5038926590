#!/bin/bash
# Branches that the script decides itself.
SIZE=4b
HARDWARE=h100
OFFLOAD=1
case "$SIZE" in
  4b|4B) source "$(dirname "${BASH_SOURCE[0]}")/models/dense-4b.sh"; CKPT=/m/Dense-4B; TP=2 ;;
  32b) source "$(dirname "${BASH_SOURCE[0]}")/models/dense-32b.sh"; CKPT=/m/Dense-32B; TP=8 ;;
  *) echo "unknown size $SIZE"; exit 1 ;;
esac
if [[ "$HARDWARE" == b* ]]; then
  FRACTION=0.85 CAP=32768
elif [[ $HARDWARE == h100 && $TP -ge 2 ]]; then
  FRACTION=0.7
  CAP=16384
else
  FRACTION=0.4
  CAP=4096
fi
OPT=(--optimizer adam)
if [ "$OFFLOAD" -eq 1 ]; then
  OPT+=(--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer)
fi
[ "$OFFLOAD" = 0 ] && OPT+=(--recompute-activations)
[[ -z "" ]] && OPT+=(--save-interval 7)
(( TP > 4 )) && CAP=1 || CAP=$((CAP / 2))
python3 train.py --hf-checkpoint $CKPT "${MODEL_ARGS[@]}" --tensor-model-parallel-size $TP "${OPT[@]}" \
  --sglang-mem-fraction-static $FRACTION --max-tokens-per-gpu $CAP --use-dynamic-batch-size --colocate \
  --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256
