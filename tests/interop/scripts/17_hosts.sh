#!/bin/bash
#= cluster.ranks = 16
#= parallelism.tensor_parallel_degree = 2
HOSTS="node-a node-b"
NNODES=$(wc -w <<< "$HOSTS")
FIRST=$(echo "$HOSTS" | tr ' ' '\n' | head -n 1)
for host in $HOSTS; do COUNT=$(( ${COUNT:-0} + 8 )); done
[[ $FIRST == node-* ]] && TP=$NNODES
torchrun --nproc_per_node $((COUNT / NNODES)) --nnodes $NNODES --master_addr ${FIRST}.local --master_port $(shuf -i 2000-3000 -n 1) \
    pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 \
    --vocab-size 1000 --micro-batch-size 1 --global-batch-size 16 --train-iters 10 --bf16 --mock-data \
    --tensor-model-parallel-size $TP
