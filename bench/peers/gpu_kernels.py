#!/usr/bin/env python3
"""The peers of `scripts/gpu_check.sh fast --only kernels`: products and attention of PyTorch on a GPU, timed by its events.

Reads a JSON list from standard input and prints the seconds of each, in its order. An entry is
    {"kind": "product", "sizes": [m, n, k], "variant": "nt"}: [m, k] times [k, n] in bfloat16. The letters say how the two are
        stored: t, the transposed matrix in rows, or n, the matrix in rows
    {"kind": "attention" or "attention_backward", "sizes": [heads, queries, keys, head_dim]}: causal, in bfloat16, by cuDNN"""
import json
import sys

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def seconds(work, least=5e-3):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def of(count):
        begin.record()
        for _ in range(count):
            work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / count

    of(2)
    count = max(1, int(least / of(1)))
    return sorted(of(count) for _ in range(5))[1]


def new(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def of(entry):
    if entry["kind"] == "product":
        m, n, k = map(int, entry["sizes"])
        left, right = entry["variant"]
        a = new(k, m).T if left == "t" else new(m, k)
        b = new(n, k).T if right == "t" else new(k, n)
        return seconds(lambda: a @ b)
    heads, queries, keys, width = map(int, entry["sizes"])
    q = new(1, heads, queries, width).requires_grad_()
    k, v = (new(1, heads, keys, width).requires_grad_() for _ in range(2))
    gradient = new(1, heads, queries, width)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        forward = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if entry["kind"] == "attention":
            return seconds(forward)
        out = forward()
        return seconds(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))


print(json.dumps([of(entry) for entry in json.load(sys.stdin)]))
