#!/bin/bash
#= parallelism.tensor_parallel_degree = 4
#= training.steps = 2000
#= lr_scheduler.warmup_steps = 40
ARGS=()
add_args() {
    local name=$1; shift
    local value
    for value in "$@"; do ARGS+=("--$name" "$value"); done
}
pick() { if (( $1 >= 8 )); then echo 4; else echo 1; fi; }
add_args num-layers 4
add_args hidden-size 64
add_args num-attention-heads 4
add_args seq-length 32
add_args max-position-embeddings 32
add_args vocab-size 1000
add_args micro-batch-size 1
add_args global-batch-size 8
add_args tensor-model-parallel-size $(pick 8)
STEPS=2000
add_args train-iters $STEPS
add_args lr-warmup-iters $((STEPS * 2 / 100))
run() { torchrun --nproc_per_node 8 "$@"; }
run pretrain_gpt.py "${ARGS[@]}" --bf16 --mock-data
