#!/bin/bash
#= model.n_layers = 12
#= training.local_batch_size = 4
#= parallelism.tensor_parallel_degree = 2
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/03_common.env"
. ./03_sizes.env
python -m torch.distributed.run --nproc_per_node=4 pretrain_gpt.py $MODEL_ARGS \
    --micro-batch-size $MICRO --bf16 --train-iters $STEPS --mock-data --tensor-model-parallel-size ${TP}
