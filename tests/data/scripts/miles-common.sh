# Shared by miles-sourcing.sh, which sets what differs before.
: "${SEQ:=8192}"
: "${OFFLOAD:=1}"
[ -n "${MODEL:-}" ] || { echo "MODEL is not set"; exit 1; }
case "$MODEL" in */*) HF="$MODEL" ;; *) HF="/models/$MODEL" ;; esac
BACKEND=( --train-backend fsdp )
[ "$OFFLOAD" = "1" ] && BACKEND+=( --fsdp-cpu-offload )
LOGGING=()
[ -n "${WANDB_API_KEY:-}" ] && LOGGING=( --use-wandb --wandb-key "$WANDB_API_KEY" )
cd "${MILES_DIR:-/root/miles}"
python3 train.py --hf-checkpoint "$HF" "${BACKEND[@]}" "${LOGGING[@]}" --rollout-batch-size 32 \
   --n-samples-per-prompt 8 --rollout-max-response-len "$SEQ" --colocate --use-dynamic-batch-size \
   --max-tokens-per-gpu "${MAX_TOKENS:-10240}" "${EXTRA_ARGS[@]}"
