#!/bin/bash
#= parallelism.tensor_parallel_degree = 2
#= parallelism.pipeline_parallel_degree = 4
#= training.seq_len = 4096
# The layout stands in the name of the job.
JOB=llama_tp2_pp4_4k.v1
BASE=${JOB%%.*}
TP=${BASE#*_tp}; TP=${TP%%_*}
PP=$(echo $BASE | cut -d_ -f3 | sed 's/^pp//')
K=$(expr ${BASE##*_} : '\([0-9]*\)k')
SEQ=$(( K * 1024 ))
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length $SEQ \
    --max-position-embeddings $SEQ --vocab-size 1000 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --bf16 \
    --mock-data --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP
