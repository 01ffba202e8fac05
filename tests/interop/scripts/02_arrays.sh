#!/bin/bash
#= cluster.ranks = 16
#= model.n_layers = 32
#= model.n_kv_heads = 8
#= parallelism.pipeline_parallel_degree = 2
#= partition.preset = "zero1"
set -euo pipefail
NODES=${NODES:-2}
PER_NODE=8
LAUNCH=(torchrun --nproc-per-node "$PER_NODE" --nnodes "$NODES" --node-rank "${NODE_RANK:-0}")
MODEL=(
    --num-layers 32            # of 7B
    --hidden-size 4096
    --ffn-hidden-size 11008
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 4096 --max-position-embeddings 4096
    --normalization RMSNorm --swiglu --position-embedding-type rope
    --disable-bias-linear --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0 --vocab-size 32000
)
TRAIN=(--micro-batch-size 1 --global-batch-size 128 --train-iters 500 --bf16 --lr 3e-4)
PARALLEL=(--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --use-distributed-optimizer)
TRAIN+=(--mock-data)
"${LAUNCH[@]}" pretrain_gpt.py "${MODEL[@]}" "${TRAIN[@]}" "${PARALLEL[@]}"
