#!/bin/bash
#= parallelism.tensor_parallel_degree = 2
#= training.local_batch_size = 1
# Conditions that only a run knows, which leave what matters alone.
TP=2
if [ ! -d /data/tokenizer ]; then
    echo "no tokenizer"
    exit 1
fi
if [ -f /etc/cluster ]; then LOGS=/shared/logs; else LOGS=./logs; fi
nvidia-smi && export NVTE_FLASH_ATTN=1
for f in *.json; do LAST=$f; done
while ! nc -z "$MASTER" 1234; do sleep 1; done
until [ -e $LOGS/ready ]; do WAITED=$((WAITED + 1)); done
source ~/.bashrc
module load cuda && conda activate megatron || exit 1
torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 \
    --max-position-embeddings 32 --vocab-size 1000 --micro-batch-size 1 --global-batch-size 16 --train-iters 10 --bf16 --mock-data \
    --tensorboard-dir $LOGS --tensor-model-parallel-size $TP
