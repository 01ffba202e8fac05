#!/usr/bin/env python3
"""The peers of `make bench-peers`: one training step in PyTorch on the CPU, eager or compiled, timed.

Shapes, batch and optimizer are those of llama.toml and gpt2.toml beside it: batch 4 of 256 tokens, AdamW (fused), clipping to
norm 1, no dropout. bfloat16 is autocast over float32 weights. Prints one JSON line with the median step time.
"""
import argparse
import json
import os
import statistics
import time

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["llama", "gpt2"], default="llama")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=6, help="timed, after three that are not")
args = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(args.threads)
torch.manual_seed(0)
BATCH, SEQ = 4, 256


class Attention(nn.Module):
    def __init__(self, width, heads, bias, rotary):
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=bias) for _ in range(4))
        angle = torch.outer(torch.arange(SEQ), 10000.0 ** (-torch.arange(0, width // heads, 2) / (width // heads)))
        self.register_buffer("cos", angle.cos()[:, None, :], persistent=False)
        self.register_buffer("sin", angle.sin()[:, None, :], persistent=False)

    def rotate(self, x):  # [batch, seq, heads, head_dim], halves against each other
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1).type_as(x)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)) for w in (self.q, self.k, self.v))
        if self.rotary:
            q, k = self.rotate(q), self.rotate(k)
        a = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.o(a.transpose(1, 2).flatten(2))


class LlamaLayer(nn.Module):
    def __init__(self, width, heads, ffn):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads, False, True)
        self.gate, self.up, self.down = (nn.Linear(*s, bias=False) for s in ((width, ffn), (width, ffn), (ffn, width)))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        n = self.norm2(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class Gpt2Layer(nn.Module):
    def __init__(self, width, heads, ffn):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, True, False)
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, layer, norm, layers, width, heads, ffn, vocab, positions):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab, width), positions and nn.Embedding(positions, width)
        self.layers = nn.ModuleList(layer(width, heads, ffn) for _ in range(layers))
        self.norm, self.head = norm(width, eps=1e-5), nn.Linear(width, vocab, bias=False)
        if positions:
            self.head.weight = self.embed.weight
        for w in self.parameters():
            if w.dim() > 1:
                nn.init.normal_(w, 0, 0.02)

    def forward(self, ids):
        x = self.embed(ids)
        if self.positions:
            x = x + self.positions.weight[:SEQ]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


model = {"llama": lambda: Model(LlamaLayer, nn.RMSNorm, 6, 512, 8, 1408, 32000, None),
         "gpt2": lambda: Model(Gpt2Layer, nn.LayerNorm, 12, 768, 12, 3072, 50304, 1024)}[args.model]()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
tokens = torch.randint(0, model.embed.num_embeddings, (BATCH, SEQ + 1))


def loss_of(ids, targets):
    with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16"):
        return F.cross_entropy(model(ids).float().flatten(0, 1), targets.flatten())


if args.compile:
    loss_of = torch.compile(loss_of)
times = []
for step in range(args.steps + 3):
    start = time.perf_counter()
    loss = loss_of(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
    times.append(time.perf_counter() - start)
step_time_s = statistics.median(times[3:])
print(json.dumps({"peer": f"torch {torch.__version__} {'compiled' if args.compile else 'eager'}", "threads": args.threads,
                  "parameters": sum(p.numel() for p in model.parameters()), "step_time_s": step_time_s}))
