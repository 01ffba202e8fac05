#!/bin/bash
#= model.vocab_size = 50304
#= activation_checkpoint.mode = "full"
#= training.mixed_precision_param = "float16"
DATA_PATH=<path of the data>_text_document
CHECKPOINTS=<path of the checkpoints>
python -m torch.distributed.launch --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 24 --hidden-size 1024 \
    --num-attention-heads 16 --micro-batch-size 4 --global-batch-size 32 --seq-length 1024 --max-position-embeddings 1024 \
    --train-iters 500000 --save $CHECKPOINTS --load $CHECKPOINTS --data-path $DATA_PATH --vocab-file gpt2-vocab.json \
    --merge-file gpt2-merges.txt --split 949,50,1 --distributed-backend nccl --lr 0.00015 --lr-decay-style cosine \
    --activations-checkpoint-method uniform --fp16
