#!/usr/bin/env python3
"""Two steps of every optimizer beside torch.optim's, on the same weights and gradients.

    optimizers.py LOCKSTEP

In float64 Lockstep's weights must be torch's to 1e-10. torch.optim.Muon iterates in bfloat16 whatever it is given: it runs as it
is, and with that one rounding left out. Lockstep must be the second to 1e-10, so what is between it and the first is the rounding.
The gradient of a step is what a step of SGD with learning rate 1 takes off the weights."""
import argparse
import contextlib
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file

RECIPE = """[model]
dim = 48
n_layers = 2
n_heads = 4
n_kv_heads = 2
ffn_dim = 80
vocab_size = 61
rope_scaling_factor = 1.0
[training]
dataset = "synthetic"
seq_len = 16
local_batch_size = 4
steps = 2
max_norm = 0.0
dtype = "float64"
mixed_precision_param = ""
[lr_scheduler]
warmup_steps = 0
min_lr_factor = 1.0
[checkpoint]
enable = true
interval = 1
last_save_model_only = false
[metrics]
log_freq = 1
"""
LR, DECAY = 1e-2, 0.1
PROBE = ["--optimizer.name", "SGD", "--optimizer.momentum", "0.0", "--optimizer.weight_decay", "0.0", "--optimizer.lr", "1.0"]


def train(binary, folder, run, *flags):
    command = [binary, "train", str(folder / "recipe.toml"), "--job.dump_folder", str(folder / run), "--quiet", *flags]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")


def weights(folder, run, step):
    """Heads are one dim, as torch.optim.Muon takes matrices alone."""
    tensors = load_file(folder / run / "checkpoint" / f"step-{step:08}" / "model.safetensors")
    return {n: w if w.dim() < 3 else w.flatten(1) if "o_proj" in n else w.flatten(0, -2) for n, w in tensors.items()}


def gradient(binary, folder, run, step):
    """Of the step after `step` of a run; step 0: of the initial weights."""
    probe = f"{run}.gradient{step}"
    start = [] if step == 0 else ["--checkpoint.initial_load_path", str(folder / run / "checkpoint" / f"step-{step:08}"),
                                  "--checkpoint.exclude_from_loading", "optimizer", "--checkpoint.initial_load_model_only", "false"]
    train(binary, folder, probe, *PROBE, "--training.steps", str(step + 1), *start)
    before, after = weights(folder, run if step else "initial", step if step else 1), weights(folder, probe, step + 1)
    return before, {name: before[name] - after[name] for name in before}


@contextlib.contextmanager
def without_rounding():
    bfloat16, method = torch.bfloat16, torch.Tensor.bfloat16  # older versions call the method
    torch.bfloat16, torch.Tensor.bfloat16 = torch.float64, torch.Tensor.clone
    try:
        yield
    finally:
        torch.bfloat16, torch.Tensor.bfloat16 = bfloat16, method


def is_matrix(name):
    return ".layers." in name and "norm" not in name


def torch_optimizers(name, options, parameters):
    decays = [p for n, p in parameters.items() if "norm" not in n]
    others = [p for n, p in parameters.items() if "norm" in n]
    groups = [{"params": decays, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    if name == "SGD":
        return [torch.optim.SGD(groups, lr=LR, momentum=0.95, nesterov=options.get("nesterov", True))]
    if name in ("Adam", "AdamW"):
        return [getattr(torch.optim, name)(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)]
    matrices = [p for n, p in parameters.items() if is_matrix(n)]
    rest = [{"params": [p for n, p in parameters.items() if not is_matrix(n) and "norm" not in n], "weight_decay": DECAY},
            {"params": others, "weight_decay": 0.0}]
    return [torch.optim.Muon(matrices, lr=LR, weight_decay=DECAY, momentum=0.95, nesterov=options.get("nesterov", True),
                             adjust_lr_fn=options.get("adjust", "match_rms_adamw")),
            torch.optim.AdamW(rest, lr=LR, betas=(0.9, 0.95), eps=1e-8)]


CASES = [("AdamW", {}), ("Adam", {}), ("SGD", {}), ("SGD", {"nesterov": False}), ("Muon", {}), ("Muon", {"nesterov": False}),
         ("Muon", {"adjust": "original"})]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lockstep")
    binary = str(pathlib.Path(parser.parse_args().lockstep).resolve())
    good = True
    print(f"torch {torch.__version__}")
    print(f"{'optimizer':<28}{'farthest weight':>16}{'updates of matrices, torch in bfloat16':>42}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "recipe.toml").write_text(RECIPE)
        train(binary, folder, "initial", "--optimizer.lr", "0.0", "--training.steps", "1")
        for k, (optimizer, options) in enumerate(CASES):
            run = f"run{k}"
            flags = ["--optimizer.name", optimizer, "--optimizer.lr", str(LR), "--optimizer.weight_decay", str(DECAY)]
            if "nesterov" in options:
                flags += ["--optimizer.nesterov", str(options["nesterov"]).lower()]
            if "adjust" in options:
                flags += ["--optimizer.muon_adjust_lr_fn", options["adjust"]]
            train(binary, folder, run, *flags)
            exact, rounded = [{n: torch.nn.Parameter(w.clone()) for n, w in weights(folder, "initial", 1).items()} for _ in range(2)]
            exact_peers, rounded_peers = [torch_optimizers(optimizer, options, p) for p in (exact, rounded)]
            farthest = off = size = 0.0
            for step in range(2):
                before, gradients = gradient(binary, folder, run, step)
                for parameters in (exact, rounded):
                    for n, p in parameters.items():
                        p.data.copy_(before[n])  # each step from Lockstep's weights; the states go on
                        p.grad = gradients[n].clone()
                with without_rounding():
                    for peer in exact_peers:
                        peer.step()
                for peer in rounded_peers:
                    peer.step()
                after = weights(folder, run, step + 1)
                for n in before:
                    farthest = max(farthest, float((after[n] - exact[n].data).abs().max()))
                    if is_matrix(n):
                        off += float((after[n] - rounded[n].data).norm() ** 2)
                        size += float((after[n] - before[n]).norm() ** 2)
            good &= farthest <= 1e-10
            of_rounding = f"{100 * (off / size) ** 0.5:.2g} % apart" if optimizer == "Muon" else "-"
            print(f"{' '.join([optimizer, *(f'{k}={v}' for k, v in options.items())]):<28}{farthest:>16.1e}{of_rounding:>42}"
                  f"{'' if farthest <= 1e-10 else '  OUTSIDE'}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
