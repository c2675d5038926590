NLAYERS=48
FIRST_DENSE=0

moe_freq=()
for ((i = 0; i < NLAYERS; i++)); do
  if ((i < FIRST_DENSE)); then
    moe_freq[i]=0
  else
    moe_freq[i]=1
  fi
done
printf -v FREQ "%s," "${moe_freq[@]}"

MODEL_ARGS=(
   --swiglu --untie-embeddings-and-output-weights
   --disable-bias-linear
   --qk-layernorm
   --group-query-attention
   --num-attention-heads 32
   --num-query-groups 4
   --kv-channels 128
   --num-layers $NLAYERS
   --hidden-size 2048
   --ffn-hidden-size 6144
   --vocab-size 151936
   # mixture
   --moe-ffn-hidden-size 768
   --moe-router-topk 8
   --num-experts 128
   --moe-layer-freq [${FREQ%,}]
   --moe-grouped-gemm
)
