#!/bin/bash
# GPT-3 175B on 16 x 8 x dp
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-128}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINTS=$1
DATA_PATH=$2

LAUNCH=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
)
MODEL=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # flash, fused, unfused
)
TRAINING=(
    --micro-batch-size 1
    --global-batch-size 1536
    --rampup-batch-size 16 16 5859375
    --train-iters 500000
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --init-method-std 0.006
    --clip-grad 1.0
    --fp16
    --lr 6.0e-5
    --lr-decay-style cosine
    --min-lr 6.0e-6
    --lr-warmup-fraction .001
    --lr-decay-iters 430000
)
PARALLEL=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
)
DATA=( --data-path $DATA_PATH --vocab-file vocab.json --merge-file merges.txt --split 949,50,1 )
LOGGING=( --log-interval 100 --save-interval 10000 --save $CHECKPOINTS --load $CHECKPOINTS --eval-iters 10 )

torchrun ${LAUNCH[@]} pretrain_gpt.py \
    ${MODEL[@]} \
    ${TRAINING[@]} \
    ${PARALLEL[@]} ${DATA[@]} \
    ${LOGGING[@]}
