#!/bin/bash
#= training.local_batch_size = 2
#= training.global_batch_size = 8
BATCH=2
(BATCH=16; export BATCH; mkdir -p logs)
BATCH=64 true
echo 32 | read BATCH
cd /workspace && GLOBAL=8 || GLOBAL=8
{ SEQ=32; } > /dev/null
torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length $SEQ \
    --max-position-embeddings 32 --vocab-size 1000 --micro-batch-size $BATCH --global-batch-size ${GLOBAL} --train-iters 10 --bf16 \
    --mock-data
