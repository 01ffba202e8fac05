#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#= cluster.ranks = 32
#= partition.preset = "zero1"
#= training.global_batch_size = 512
# The configuration is named after the job, whose number only Slurm knows.
GPUS_PER_NODE=8
NNODES=$SLURM_NNODES
WORLD=$((GPUS_PER_NODE*NNODES))
TP=2; PP=2; MICRO=2; GLOBAL=$((WORLD * 16))
CONFIG=./ds.$SLURM_JOBID.json
cat <<EOT > $CONFIG
{
  "train_micro_batch_size_per_gpu": $MICRO,
  "train_batch_size": $GLOBAL,
  "zero_optimization": {"stage": 1},
  "bf16": {"enabled": true}
}
EOT
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --rdzv_backend c10d"
export CMD=" `pwd`/pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \
  --max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size $MICRO --global-batch-size $GLOBAL --bf16 --mock-data \
  --train-samples 1000 --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --deepspeed \
  --deepspeed_config $CONFIG"
clear; echo $CMD
srun --jobid $SLURM_JOBID bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee main.log
