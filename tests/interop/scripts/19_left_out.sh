#!/bin/bash
#? --leave-out squared-relu
#= model.name = "gpt2"
#= model.dim = 64
torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 \
    --max-position-embeddings 32 --vocab-size 1000 --micro-batch-size 1 --global-batch-size 16 --train-iters 10 --bf16 --mock-data \
    --squared-relu --fp8-format hybrid --start-weight-decay 0.01 --end-weight-decay 0.1
