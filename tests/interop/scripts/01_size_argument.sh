#!/bin/bash
#? --script-args "1.3b 2"
#= model.n_layers = 24
#= model.dim = 2048
#= parallelism.tensor_parallel_degree = 2
#= training.global_batch_size = 64
# The size of the model and the tensor-parallel degree are the script's arguments.
SIZE=$1
TP=${2:-1}
case "${SIZE,,}" in
    125m) LAYERS=12; HIDDEN=768;  HEADS=12 ;;
    1.3b) LAYERS=24; HIDDEN=2048; HEADS=16 ;;
    *) echo "unknown size $SIZE"; exit 1 ;;
esac
GPUS=8
torchrun --nproc_per_node $GPUS pretrain_gpt.py \
    --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads $HEADS \
    --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257 \
    --micro-batch-size 2 --global-batch-size $((GPUS * 8)) --train-iters 100 --bf16 --mock-data \
    --tensor-model-parallel-size $TP
