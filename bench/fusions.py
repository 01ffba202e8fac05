#!/usr/bin/env python3
"""What each fused kernel gains: the step of `make bench-peers` with it and without (runtime.disabled_kernels), alternately.

    fusions.py LOCKSTEP [--pairs N] [--cases llama gpt2]

Without its kernel an op runs as its parts, each by its own kernel, vectorised or not: docs/kernels.md says where parts have none.
"""
import argparse
import pathlib
import statistics
import tempfile

from floor import last_json

peers = pathlib.Path(__file__).parent / "peers"
OFF = "--runtime.disabled_kernels"
CHANGES = {
    "llama": [("residual + norm", [OFF, "add_rmsnorm"]), ("norm's backward + residual", [OFF, "rmsnorm_backward_add"]),
              ("product + sum", [OFF, "addmm"]), ("QKV products + RoPE", [OFF, "qkv_rope"]),
              ("linear + cross-entropy in chunks", ["--training.fuse_loss", "false"]),
              ("SwiGLU and its backward", [OFF, "swiglu,swiglu_backward"]),
              ("RMSNorm and its backward", [OFF, "add_rmsnorm,rmsnorm,rmsnorm_backward_add,rmsnorm_backward"])],
    "gpt2": [("bias + GELU and its backward", [OFF, "bias_gelu,bias_gelu_backward"]),
             ("bias + dropout + residual", [OFF, "bias_dropout_add"]), ("LayerNorm's backward + residual", [OFF, "layernorm_backward_add"])],
}

parser = argparse.ArgumentParser()
parser.add_argument("lockstep")
parser.add_argument("--pairs", type=int, default=3)
parser.add_argument("--cases", nargs="+", choices=CHANGES, default=list(CHANGES))
args = parser.parse_args()

for case in args.cases:
    print(f"{case + ' float32':<36}{'fused ms':>10}{'apart ms':>10}{'gain':>8}   [range of {args.pairs} pairs]", flush=True)
    for name, change in CHANGES[case]:
        pairs = []
        with tempfile.TemporaryDirectory() as folder:
            command = [args.lockstep, "train", str(peers / f"{case}.toml"), "--json", "--training.steps", "5", "--job.dump_folder", folder]
            for _ in range(args.pairs):
                pairs.append([1e3 * last_json(command + c)["step_time_s"] for c in ([], change)])
        gains = sorted(100 * (apart / fused - 1) for fused, apart in pairs)
        fused, apart = (statistics.median(x) for x in zip(*pairs))
        print(f"  {name:<34}{fused:>10.0f}{apart:>10.0f}{statistics.median(gains):>7.1f} %   [{gains[0]:.1f} to {gains[-1]:.1f}]", flush=True)
