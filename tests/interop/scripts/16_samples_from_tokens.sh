#!/bin/bash
#= training.steps = 1000
#= lr_scheduler.warmup_steps = 10
#= lr_scheduler.total_steps = 1000
TOKENS=$(( 1024 * 1000 * 16 ))
SEQ=1024; BATCH=16
SAMPLES=$(( ${TOKENS} / ${SEQ} ))
WARMUP=$(( 10 * BATCH ))
torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length ${SEQ} \
    --max-position-embeddings ${SEQ} --vocab-size 1000 --micro-batch-size 1 --global-batch-size ${BATCH} --bf16 --mock-data \
    --train-samples ${SAMPLES} --lr-decay-samples $SAMPLES --lr-warmup-samples ${WARMUP} --lr 1.0e-4 --min-lr 1e-5
