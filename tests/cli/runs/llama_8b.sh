#!/bin/bash
# Llama 3 8B with grouped queries: 4 nodes of 8, tensor 2, all of it sharded by the distributed optimizer.
#SBATCH --nodes=4
#SBATCH --ntasks-per-node 1
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP="2"
SEQ=$((8 * 1024))
MASTER=$(hostname)

ARGS="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
      --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
      --seq-length ${SEQ} --max-position-embeddings $SEQ \
      --position-embedding-type rope --rotary-base 500000 --use-rope-scaling \
      --normalization RMSNorm --swiglu --disable-bias-linear \
      --untie-embeddings-and-output-weights \
      --attention-dropout 0.0 --hidden-dropout 0.0"
ARGS+=" --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B --vocab-size 128256"
ARGS="$ARGS --micro-batch-size 1 --global-batch-size 128 --bf16 --lr 3e-4 --min-lr 3e-5 --train-samples 1280000"
ARGS="$ARGS --lr-decay-style WSD --lr-wsd-decay-style minus_sqrt --lr-wsd-decay-samples 128000 --lr-warmup-samples 25600"
ARGS="$ARGS --tensor-model-parallel-size $TP --sequence-parallel --tp-comm-overlap"
ARGS="$ARGS --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --recompute-activations --mock-data"

srun bash -c "torchrun --nproc-per-node=8 --nnodes=$SLURM_NNODES --rdzv-endpoint=$MASTER:29500 \
    pretrain_gpt.py $ARGS --use-flash-attn"
