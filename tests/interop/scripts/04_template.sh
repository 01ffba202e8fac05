#!/bin/bash
#= partition.preset = "zero2"
#= training.local_batch_size = 4
#= training.global_batch_size = 256
#= training.max_norm = 0.5
# The configuration of DeepSpeed is made of a template beside the script.
ZERO=2
MICRO=4
GLOBAL=256
DIR=`pwd`
NAME="gpt-350m-bs-${GLOBAL}-zero-${ZERO}"
template="$DIR/04_template.json"
config="ds_config_${NAME}.json"
sed "s/BATCH_OF_ALL/${GLOBAL}/" ${template} \
    | sed "s/BATCH_OF_ONE/${MICRO}/" \
    | sed "s/LOG_EVERY/10/" \
    | sed "s/STAGE/${ZERO}/" > ${config}
options=" --deepspeed --deepspeed_config ${config} --zero-stage ${ZERO} "
deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
    --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size ${MICRO} \
    --global-batch-size ${GLOBAL} --train-iters 100 --bf16 --clip-grad 0.5 --mock-data ${options} &> log.txt
