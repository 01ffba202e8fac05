#!/usr/bin/env python3
"""Writes bfloat16.json: how far PyTorch's bfloat16 training is from float64, for each case of make_golden.py and several weights.

Three ways to train in bfloat16, all with float32 weights and moments in the optimizer:
  autocast  torch.autocast: products in bfloat16, everything between them as the model has it (the residual stream float32)
  cast      parameters cast to bfloat16 for forward and backward, gradients back to float32 before they are used, as FSDP2's
            MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32) does on one rank. So the residual stream is bfloat16.
            Norms, rotary positions and GELU are done as TorchTitan does them: in float32 with one rounding.
  rounded   autocast of parameters that are all rounded to bfloat16 first, norms and tables too: what Megatron-LM's --bf16 keeps
            beside a float32 residual stream (--fp32-residual-connection)
The logits go to the loss as float32 in all. Every set of weights is a run of its own: the spread of their distances is what
bfloat16 costs by chance. See README.md for the figures and for how to run this.
"""

import argparse
import copy
import json
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

import make_golden as golden

BF16 = torch.bfloat16
SEEDS = 8
WAYS = (("autocast", "eager"), ("autocast", "sdpa"), ("cast", "sdpa"), ("rounded", "sdpa"))


def rms_norm(self, x):
    return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def rotate_in_float32(q, k, cos, sin, unsqueeze_dim=1, **_):
    cos, sin = cos.float().unsqueeze(unsqueeze_dim), sin.float().unsqueeze(unsqueeze_dim)

    def rotated(x):
        x1, x2 = x.float().chunk(2, dim=-1)
        return (x.float() * cos + torch.cat((-x2, x1), dim=-1) * sin).to(x.dtype)

    return rotated(q), rotated(k)


class Tables(torch.nn.Module):
    """Cosines and sines in float32, whatever the type of the activations."""

    def __init__(self, config):
        super().__init__()
        self.inv_freq = torch.tensor(golden.inverse_frequencies(config), dtype=torch.float32)

    def forward(self, x, position_ids):
        angle = position_ids[..., None].float() * self.inv_freq
        both = torch.cat((angle, angle), dim=-1)
        return both.cos(), both.sin()


def build(name, case, way, attention):
    """The model, and what undoes its changes to transformers."""
    module, prefix = golden.family(case["config"])
    model = golden.build(name, case, torch.float32, True)
    model.config._attn_implementation = attention
    if way != "cast":
        return model, lambda: None
    if prefix == "GPT2":
        for block in model.transformer.h:
            block.mlp.act = torch.nn.GELU(approximate="tanh")
        return model, lambda: None
    for m in model.modules():
        if type(m).__name__ == prefix + "RMSNorm":
            m.forward = rms_norm.__get__(m)
    model.model.rotary_emb = Tables(case["config"])
    stock = module.apply_rotary_pos_emb
    module.apply_rotary_pos_emb = rotate_in_float32
    return model, lambda: setattr(module, "apply_rotary_pos_emb", stock)


def train(name, case, way, attention, steps):
    """Losses and gradient norms of each step, and the first step's gradients."""
    o, vocab = case["optimizer"], case["config"]["vocab_size"]
    if way == "float64":
        model, undo = golden.build(name, case, torch.float64, False), lambda: None
    else:
        model, undo = build(name, case, way, attention)
    params = dict(model.named_parameters())
    groups = [{"params": [p for p in params.values() if p.dim() == 2], "weight_decay": o["weight_decay"]},
              {"params": [p for p in params.values() if p.dim() != 2], "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"], foreach=False)

    def logits(inputs):
        if way == "cast":
            narrow = {n: p.to(BF16) for n, p in params.items()}
            return torch.func.functional_call(model, narrow, (), {"input_ids": inputs}, tie_weights=True).logits
        with torch.autocast("cpu", dtype=BF16, enabled=way != "float64"):
            if way == "rounded":
                seen = {n: p + (p.to(BF16).float() - p).detach() for n, p in params.items()}  # its gradient is not rounded
                return torch.func.functional_call(model, seen, (), {"input_ids": inputs}, tie_weights=True).logits
            return model(input_ids=inputs).logits

    losses, norms, gradients = [], [], {}
    for step in range(steps):
        inputs, target = golden.batch(step, vocab, case["formula"])
        opt.zero_grad(set_to_none=True)
        out = logits(inputs)
        assert out.dtype == (torch.float64 if way == "float64" else BF16)
        out = out if way == "float64" else out.float()
        loss = F.cross_entropy(out.reshape(-1, vocab), target.reshape(-1), ignore_index=-100)
        loss.backward()
        if step == 0:
            gradients = {n: p.grad.double().clone() for n, p in params.items()}  # clipping changes them
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), o["max_grad_norm"]).item())
        losses.append(loss.item())
        opt.step()
    undo()
    return losses, norms, gradients


def rms(x):
    return math.sqrt(float(np.mean(np.square(x))))


def distances(exact, got):
    """Relative distances: root mean squares over steps, and over parameters."""
    losses, norms = ([b / a - 1 for a, b in zip(exact[i], got[i])] for i in (0, 1))
    gradients = [((got[2][n] - g).norm() / g.norm()).item() for n, g in exact[2].items()]
    return {"gradients": rms(gradients), "first_loss": abs(losses[0]), "losses": rms(losses), "grad_norms": rms(norms)}


def make(name, steps):
    runs = {f"{way} {attention}": [] for way, attention in WAYS}
    exact = []
    for seed in range(SEEDS):
        case = copy.deepcopy(golden.CASES[name])
        case["formula"]["salt"] = f"#{seed}"
        want = train(name, case, "float64", None, steps)
        exact.append({"losses": want[0], "grad_norms": want[1]})
        for way, attention in WAYS:
            runs[f"{way} {attention}"].append(distances(want, train(name, case, way, attention, steps)))
    for way, found in runs.items():
        of = {k: [d[k] for d in found] for k in found[0]}
        print(f"{name:15}{way:16}" + "  ".join(f"{k} {rms(v):.2e} [{min(v):.1e} to {max(v):.1e}]" for k, v in of.items()), flush=True)
    return {"float64": golden.digits(exact, 12), **{way: golden.digits(found, 4) for way, found in runs.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "bfloat16.json"))
    parser.add_argument("cases", nargs="*", help="which; all by default")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    cases = {name: make(name, golden.STEPS) for name in golden.CASES if not args.cases or name in args.cases}
    with open(args.out, "w") as out:
        json.dump({"made_with": {"torch": torch.__version__, "transformers": golden.transformers.__version__}, "seeds": SEEDS,
                   "cases": cases}, out, indent=None, separators=(",", ":"))
        out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
