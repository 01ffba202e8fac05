#!/usr/bin/env python3
"""Lockstep and PyTorch (FSDP2, HSDP over gloo) on 4 emulated hosts of 2 ranks, alternately: the same model, batch and optimizer.

    cluster.sh 4 200mbit PYTHON_WITH_TORCH peers.py LOCKSTEP [--rounds N] [--layouts FSDP HSDP] [--rates 200 1000]

The ratio is of the steps of one round. Both warm up for two steps. Exit code 1 where the median of a case is below the goal of 1.5."""
import argparse
import os
import pathlib
import statistics
import sys
import tempfile

from hosts import HOSTS, last_json, mpirun, require_cluster, sent, set_rate, train
from recipes import FSDP, HSDP, write_recipe

GOAL = 1.5
DIM, LAYERS, VOCAB, SEQ = 256, 6, 2048, 128
LAYOUTS = {"FSDP": (FSDP, 1), "HSDP": (HSDP, HOSTS)}  # flags, replicas

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("lockstep")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--steps", type=int, default=3, help="timed in each run, after two that are not")
parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
parser.add_argument("--rates", nargs="+", type=float, default=[200, 1000], help="Mbit/s of a host")
args = parser.parse_args()
require_cluster()
lockstep = os.path.abspath(args.lockstep)


def megabytes(command):
    """Result of the command, and what the busiest host sends meanwhile, over the steps."""
    before = sent()
    result = command()
    return result, max(b[0] - a[0] for a, b in zip(before, sent())) / (args.steps + 2) / 1e6


def spread(x):
    return f"{statistics.median(x):.3f} [{min(x):.3f} to {max(x):.3f}]"


print(f"Llama {LAYERS} x {DIM}, {VOCAB} tokens, a sequence of {SEQ} a rank, float32; {args.rounds} rounds; seconds a step; MB on the wire of the busiest host, a step")
print(f"{'layout':<8}{'Mbit/s':>7}  {'lockstep':<26}{'MB':>6}  {'PyTorch':<26}{'MB':>6}  tokens/s, lockstep over PyTorch")
good = True
with tempfile.TemporaryDirectory() as folder:
    recipe = write_recipe(folder, "peers", DIM, LAYERS, VOCAB, SEQ)
    for layout in args.layouts:
        flags, replicate = LAYOUTS[layout]
        sizes = dict(dim=DIM, layers=LAYERS, heads=4, ffn=DIM * 11 // 4, vocab=VOCAB, seq=SEQ, replicate=replicate, steps=args.steps)
        peer = [sys.executable, str(pathlib.Path(__file__).with_name("peer_pytorch.py")), "--address", "10.77.0.1"]
        for rate in args.rates:
            set_rate(rate)
            ours, theirs = [], []
            for _ in range(args.rounds):
                run, our_mb = megabytes(lambda: train(lockstep, recipe, *flags, "--training.steps", str(args.steps + 2)))
                ours.append(run["step_time_s"])
                run, their_mb = megabytes(lambda: last_json(mpirun(peer + [x for k, v in sizes.items() for x in (f"--{k}", str(v))])))
                theirs.append(run["step_time_s"])
            ratios = [t / o for o, t in zip(ours, theirs)]
            inside = statistics.median(ratios) >= GOAL
            good &= inside
            print(f"{layout:<8}{rate:>7.0f}  {spread(ours):<26}{our_mb:>6.1f}  {spread(theirs):<26}{their_mb:>6.1f}  {spread(ratios)}"
                  f"{'' if inside else '  BELOW THE GOAL'}", flush=True)
sys.exit(0 if good else 1)
