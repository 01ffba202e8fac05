#!/bin/bash
#SBATCH -N 8
#SBATCH --gpus-per-node=8
# GPT 22B under DeepSpeed: 8 pipeline ranks, as on a machine with srun and no torchrun.
GPUS=$((SLURM_NNODES * SLURM_GPUS_PER_NODE))
MICRO=1
GLOBAL=64
ZERO=1
CONFIG=ds_config.json
cat <<EOF > $CONFIG
{
  "train_batch_size": $GLOBAL,
  "train_micro_batch_size_per_gpu": $MICRO,
  "steps_per_print": 10,
  "zero_optimization": { "stage": $ZERO },
  "gradient_clipping": 1.0,
  "fp16": { "enabled": true, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 500, "hysteresis": 2 }
}
EOF

options=" \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 8 \
    --num-layers 48 --hidden-size 6144 --num-attention-heads 48 \
    --seq-length 2048 --max-position-embeddings 2048 \
    --micro-batch-size $MICRO --global-batch-size $GLOBAL \
    --train-iters 1000 --lr 6.0e-5 --min-lr 6.0e-6 --lr-decay-style cosine \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path my-gpt2_text_document \
    --fp16 --checkpoint-activations"
deepspeed_options=" --deepspeed --deepspeed_config $CONFIG --zero-stage $ZERO --deepspeed-activation-checkpointing"
run="srun -n $GPUS python -u pretrain_gpt.py $@ ${options} ${deepspeed_options}"
echo ${run}
eval ${run}
