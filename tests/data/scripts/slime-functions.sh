#!/bin/bash
# Arrays are set in functions, with local names and arguments.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
load_model() {
  local name="$1"
  source "$here/models/${name}.sh"
}
perf() {
  local tp=$1 pp=${2:-1}
  local cap=999
  PERF_ARGS=(--tensor-model-parallel-size "$tp" --pipeline-model-parallel-size "$pp")
  shift 2
  PERF_ARGS+=("$@")
  return 0
  PERF_ARGS=()
}
function engine {
  SGLANG_ARGS=( --rollout-num-gpus-per-engine $1 )
  if [[ $# -gt 1 ]]; then SGLANG_ARGS+=( --sglang-mem-fraction-static $2 ); fi
}
unused() { PERF_ARGS=(--tensor-model-parallel-size 64); }
add() { local -n target=$1; shift; target+=("$@"); }
main() {
  cap=4096
  load_model dense-32b
  perf 8 2 --sequence-parallel --max-tokens-per-gpu "$((cap * 2))" --use-dynamic-batch-size
  engine 4 0.55
  add SGLANG_ARGS --sglang-cuda-graph-bs 1 2 4
  python3 /root/slime/train.py --hf-checkpoint "/m/Dense-32B" "${MODEL_ARGS[@]}" "${PERF_ARGS[@]}" "${SGLANG_ARGS[@]}" \
    --actor-num-nodes 4 --actor-num-gpus-per-node 8 --colocate --rollout-batch-size 64 \
    --n-samples-per-prompt $(samples) --global-batch-size 512 --update-weight-buffer-size $(( $(samples) * 64 << 20 ))
}
samples() { echo 8; }
main "$@"
