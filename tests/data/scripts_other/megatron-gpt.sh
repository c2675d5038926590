#!/bin/bash
# Pretraining of a dense model over two nodes.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=2
CHECKPOINT_PATH=${1:-"checkpoints/llama3_8b"}
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES --node_rank ${NODE_RANK:-0} --master_addr localhost)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32 --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --kv-channels 128
    --seq-length 8192 --max-position-embeddings 8192
    --swiglu --disable-bias-linear
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --bf16
    --use-distributed-optimizer
    --recompute-granularity selective
)
PARALLEL=(
    --tensor-model-parallel-size 2
    --context-parallel-size 2
    --sequence-parallel
)
EVAL=(--save-interval 1000 --eval-interval 100 --eval-iters 32)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${PARALLEL[@]} \
    --vocab-size 128256 --tokenizer-type NullTokenizer --mock-data "${EVAL[@]}" --save "$CHECKPOINT_PATH"
