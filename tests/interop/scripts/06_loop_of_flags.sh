#!/bin/bash
#? --script-args "--layers 8 --tp=2 --no-sp extra"
#= model.n_layers = 8
#= parallelism.tensor_parallel_degree = 2
#= parallelism.sequence_parallel = false
LAYERS=4
TP=1
SP=--sequence-parallel
while [[ $# -gt 0 ]]; do
    case $1 in
        --layers) LAYERS="$2"; shift 2 ;;
        --tp=*) TP="${1#*=}"; shift ;;
        --no-sp) SP=""; shift ;;
        *) REST+=("$1"); shift ;;
    esac
done
torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers $LAYERS --hidden-size 64 --num-attention-heads 4 --seq-length 32 \
    --max-position-embeddings 32 --vocab-size 1000 --micro-batch-size 1 --train-iters 10 --bf16 --mock-data \
    --tensor-model-parallel-size $TP $SP
