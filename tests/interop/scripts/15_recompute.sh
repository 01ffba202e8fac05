#!/bin/bash
#? --script-args "full"
#= activation_checkpoint.mode = "full"
#= parallelism.pipeline_parallel_schedule = "Interleaved1F1B"
#= parallelism.pipeline_parallel_layers_per_stage = 2
AC=$1
VP=2
if [ $AC = full ]; then
    AC_ARGS="--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
elif [ $AC = sel ]; then
    AC_ARGS="--recompute-activations"
elif [ $AC = none ]; then
    AC_ARGS=""
fi
if [ -z ${VP} ]; then VP_ARGS=""; else VP_ARGS="--num-layers-per-virtual-pipeline-stage ${VP}"; fi
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 64 --num-attention-heads 4 --seq-length 32 \
    --max-position-embeddings 32 --vocab-size 1000 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --bf16 --mock-data \
    --pipeline-model-parallel-size 4 ${AC_ARGS} ${VP_ARGS}
