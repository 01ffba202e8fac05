#!/bin/bash
#? --script-args "13b"
#= model.n_layers = 40
#= model.dim = 5120
#= model.n_heads = 40
declare -A LAYERS=([7b]=32 [13b]=40)
declare -A WIDTH=(["7b"]=4096 ["13b"]=5120)
SIZE=${1:?give the size of the model}
readonly HEADS=$(( ${WIDTH[$SIZE]} / 128 ))
torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers ${LAYERS[$SIZE]} --hidden-size ${WIDTH[$SIZE]} \
    --num-attention-heads $HEADS --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 \
    --global-batch-size 64 --train-iters 10 --bf16 --mock-data --tensor-model-parallel-size 8
