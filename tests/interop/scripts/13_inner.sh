#!/bin/bash
# Started by 13_exports_to_inner.sh.
torchrun --nproc_per_node ${GPUS:-8} pretrain_gpt.py --num-layers $LAYERS --hidden-size 64 --num-attention-heads 4 --seq-length 32 \
    --max-position-embeddings 32 --vocab-size 1000 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --bf16 --$1-data \
    --tensor-model-parallel-size ${TP:-1}
