#!/bin/bash
#= model.n_layers = 4
#= training.global_batch_size = 8
#= optimizer.lr = 0.0003
LR="3e-4"
options=" \
    --num-layers 4 --hidden-size 64 --num-attention-heads 4 \
    --seq-length 32 --max-position-embeddings 32 --vocab-size 1000 \
    --micro-batch-size 1 --global-batch-size 8 --train-iters 10 \
    --lr '${LR}' --bf16 --mock-data"
run_cmd="torchrun --nproc_per_node 2 pretrain_gpt.py ${options} 2>&1 | tee out.log"
echo ${run_cmd}
eval ${run_cmd}
set +x
