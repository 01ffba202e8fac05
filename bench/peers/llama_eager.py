#!/usr/bin/env python3
"""The peer of `make bench-peers`: one float32 training step of a small Llama in eager PyTorch on the CPU, timed.

Same shape, batch and optimizer as bench/peers/llama.toml: 6 layers, width 512, 8 heads, SwiGLU 1408, 32,000 tokens, batch 4 of
256 tokens, AdamW (fused), clipping to norm 1. Prints one JSON line with the median step time.
"""
import argparse
import json
import os
import statistics
import time

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=6, help="timed, after two that are not")
args = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(args.threads)
torch.manual_seed(0)
LAYERS, WIDTH, HEADS, FFN, VOCAB, BATCH, SEQ = 6, 512, 8, 1408, 32000, 4, 256


def rotary():
    frequency = 10000.0 ** (-torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS))
    angle = torch.outer(torch.arange(SEQ), frequency)
    return angle.cos()[:, None, :], angle.sin()[:, None, :]


COS, SIN = rotary()


def rotate(x):  # [batch, seq, heads, head_dim], halves against each other
    a, b = x.chunk(2, -1)
    return torch.cat((a * COS - b * SIN, b * COS + a * SIN), -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.q, self.k, self.v, self.o = (linear(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up, self.down = linear(WIDTH, FFN), linear(WIDTH, FFN), linear(FFN, WIDTH)

    def forward(self, x):
        n = self.norm1(x)
        q, k, v = (w(n).view(BATCH, SEQ, HEADS, -1) for w in (self.q, self.k, self.v))
        q, k, v = (t.transpose(1, 2) for t in (rotate(q), rotate(k), v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(BATCH, SEQ, WIDTH))
        n = self.norm2(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH, eps=1e-5), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


model = Llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1))
times = []
for step in range(args.steps + 2):
    start = time.perf_counter()
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
    times.append(time.perf_counter() - start)
step_time_s = statistics.median(times[2:])
print(json.dumps({"peer": f"torch {torch.__version__} eager", "threads": args.threads, "step_time_s": step_time_s, "tokens_per_s": BATCH * SEQ / step_time_s}))
