#!/usr/bin/env python3
"""Writes llama_gqa_bfloat16.json and llama_tied_bfloat16.json: make_golden.py's runs under PyTorch's autocast to bfloat16.

Weights, gradients and optimizer states are float32; products and attention run in bfloat16, norms, softmax and loss in float32.
Every case runs several times with the same meaning: in one batch, and in microbatches of 4, 2 and 1 sequences whose gradients are
added up. How far those runs lie apart, figure by figure, is autocast's own run-to-run tolerance; it is written beside the figures.
"""
import json
import os

import torch
import torch.nn.functional as F

import make_golden as golden


def run(case, sequences):
    o, f = case["optimizer"], case["formula"]
    vocab = case["config"]["vocab_size"]
    model = golden.build(case, torch.float32, True)
    params = dict(model.named_parameters())
    groups = [[p for p in params.values() if p.dim() == 2], [p for p in params.values() if p.dim() != 2]]
    opt = torch.optim.AdamW([{"params": g, "weight_decay": d} for g, d in zip(groups, (o["weight_decay"], 0.0))],
                            lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"], foreach=False)

    def losses_of(step):
        inputs, target = golden.batch(step, vocab, f)
        valid = (target != -100).sum()
        for b in range(0, golden.BATCH, sequences):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(input_ids=inputs[b:b + sequences]).logits
            rows = target[b:b + sequences].reshape(-1)
            yield F.cross_entropy(logits.float().reshape(-1, vocab), rows, ignore_index=-100, reduction="sum") / valid

    out = {"losses": [], "grad_norms": [], "step1_param_grad_norms": {}}
    for step in range(golden.STEPS):
        opt.zero_grad(set_to_none=True)
        total = 0.0
        for loss in losses_of(step):
            loss.backward()
            total += loss.item()
        if step == 0:
            out["step1_param_grad_norms"] = {n: p.grad.norm().item() for n, p in params.items()}
        out["grad_norms"].append(torch.nn.utils.clip_grad_norm_(params.values(), o["max_grad_norm"]).item())
        opt.step()
        out["losses"].append(total)
    with torch.no_grad():
        out["final_loss"] = sum(loss.item() for loss in losses_of(golden.STEPS))
    out["final_param_norms"] = {n: p.norm().item() for n, p in params.items()}
    return out


def largest(differences):
    return {k: max(d[k] for d in differences) for k in differences[0]}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    here = os.path.dirname(os.path.abspath(__file__))
    for name, case in golden.CASES.items():
        runs = [run(case, n) for n in (8, 4, 2, 1)]
        exact = golden.run(case, torch.float64)[0]
        spread = largest([golden.compare(a, b) for i, a in enumerate(runs) for b in runs[:i]])
        error = largest([golden.compare(exact, r) for r in runs])
        print(name, "run to run:", {k: f"{x:.1e}" for k, x in spread.items()}, "from float64:", {k: f"{x:.1e}" for k, x in error.items()})
        with open(os.path.join(here, name + "_bfloat16.json"), "w") as file:
            json.dump({"case": name, "made_with": {"torch": torch.__version__}, "autocast": golden.digits(runs[0], 9),
                       "run_to_run": golden.digits(spread, 3), "from_float64": golden.digits(error, 3)}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
