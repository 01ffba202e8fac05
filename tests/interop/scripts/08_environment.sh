#!/bin/bash
#? --script-env MODEL=small --script-env WORLD_SIZE=4 --script-env KUBERNETES=1
#= cluster.ranks = 32
#= model.dim = 512
#= parallelism.pipeline_parallel_degree = 2
if [ -n "$KUBERNETES" ]; then
    NNODES=${WORLD_SIZE}
    GPUS=8
else
    NNODES=1
    GPUS=$(nvidia-smi -L | wc -l)
fi
if [ "$MODEL" = "small" ]; then
    HIDDEN=512
elif [ "$MODEL" = "large" ]; then
    HIDDEN=4096
else
    exit 1
fi
let PP=NNODES/2
torchrun --nproc_per_node $GPUS --nnodes $NNODES pretrain_gpt.py --num-layers 8 --hidden-size $HIDDEN --num-attention-heads 8 \
    --seq-length 128 --max-position-embeddings 128 --vocab-size 1000 --micro-batch-size 1 --global-batch-size 64 --train-iters 10 \
    --bf16 --mock-data --pipeline-model-parallel-size $PP
