#!/bin/bash
#= model.n_layers = 6
#= parallelism.tensor_parallel_degree = 2
#= cluster.ranks = 4
export LAYERS=6
TP=8
TP=2 GPUS=4 bash 13_inner.sh mock
