#!/usr/bin/env python3
"""Runs Lockstep and eager PyTorch alternately on the same shape and prints medians, spread and ratio. `make bench-peers` calls it.

compare.py LOCKSTEP_BINARY [--pairs N] [--threads N]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

here = pathlib.Path(__file__).parent
parser = argparse.ArgumentParser()
parser.add_argument("lockstep")
parser.add_argument("--pairs", type=int, default=7)
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()


def last_json(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


ours, theirs = [], []
for pair in range(args.pairs):
    ours.append(last_json([args.lockstep, "train", str(here / "llama.toml"), "--json", "--runtime.threads_per_rank", str(args.threads)])["step_time_s"])
    peer = last_json([sys.executable, str(here / "llama_eager.py"), "--threads", str(args.threads)])
    theirs.append(peer["step_time_s"])
    print(f"pair {pair + 1}: lockstep {ours[-1]:.3f} s, {peer['peer']} {theirs[-1]:.3f} s, ratio {theirs[-1] / ours[-1]:.2f}", flush=True)
ratios = sorted(t / o for o, t in zip(ours, theirs))
for name, x in (("lockstep", ours), ("peer", theirs)):
    print(f"{name}: median {statistics.median(x):.3f} s [{min(x):.3f} to {max(x):.3f}], {1024 / statistics.median(x):.0f} tokens/s")
print(f"lockstep is {statistics.median(ratios):.2f} times as fast [{ratios[0]:.2f} to {ratios[-1]:.2f}], {args.threads} threads, Llama 6x512, batch 4 x 256, float32")
