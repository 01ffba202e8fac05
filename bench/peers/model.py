"""Llama and GPT-2 in PyTorch, as users write them: what Lockstep is timed against."""
import torch
from torch import nn
from torch.nn import functional as F


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    def __init__(self, width, heads, seq, bias, rotary):
        super().__init__()
        self.head_dim, self.rotary, self.attend = width // heads, rotary, causal
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=bias) for _ in range(4))
        angle = torch.outer(torch.arange(seq), 10000.0 ** (-torch.arange(0, self.head_dim, 2) / self.head_dim))
        self.register_buffer("cos", angle.cos()[:, None, :], persistent=False)
        self.register_buffer("sin", angle.sin()[:, None, :], persistent=False)

    def rotate(self, x):  # [batch, seq, heads, head_dim], halves against each other
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1).type_as(x)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.q, self.k, self.v))
        if self.rotary:
            q, k = self.rotate(q), self.rotate(k)
        a = self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.o(a.transpose(1, 2).flatten(2))


class SwiGlu(nn.Module):
    def __init__(self, width, ffn):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(*s, bias=False) for s in ((width, ffn), (width, ffn), (ffn, width)))

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Gelu(nn.Module):
    def __init__(self, width, ffn):
        super().__init__()
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Layer(nn.Module):
    def __init__(self, norm, width, attention, feed_forward):
        super().__init__()
        self.norm1, self.norm2 = norm(width, eps=1e-5), norm(width, eps=1e-5)
        self.attention, self.feed_forward = attention, feed_forward

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    def __init__(self, norm, width, vocab, positions, layers):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab, width), positions and nn.Embedding(positions, width)
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = norm(width, eps=1e-5), nn.Linear(width, vocab, bias=False)
        if positions:
            self.head.weight = self.embed.weight
        for w in self.parameters():
            if w.dim() > 1:
                nn.init.normal_(w, 0, 0.02)

    def forward(self, ids):
        x = self.embed(ids)
        if self.positions:
            x = x + self.positions.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
