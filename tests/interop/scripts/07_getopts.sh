#!/usr/bin/env bash
#? --script-args "-l 6 -b 3 -m"
#= model.n_layers = 6
#= training.local_batch_size = 3
#= training.dataset = "synthetic"
usage() { echo "usage: $0 -l LAYERS [-b BATCH] [-m]" >&2; exit 2; }
BATCH=1; DATA="--data-path $DATA_ROOT/text"
while getopts "l:b:mh" option; do
    case "$option" in
        l) LAYERS=$OPTARG ;;
        b) BATCH=$OPTARG ;;
        m) DATA=--mock-data ;;
        *) usage ;;
    esac
done
[ -z "$LAYERS" ] && usage
python pretrain_gpt.py --num-layers $LAYERS --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 1000 \
    --max-position-embeddings 32 --micro-batch-size $BATCH --train-iters 10 --bf16 $DATA
