#!/usr/bin/env python3
"""Whether context ranks have equal work: processor time of the threads of 4 ranks in attention over 8,192 tokens, in both orders.

    context.py LOCKSTEP [--rounds N]

The model does little but attention: 8 heads of 64, and a width, a feed-forward and a vocabulary of 64. All else is equal on all ranks.
Time that a thread waits does not count. Exit code 1 where the slowest rank has more than 1.05 of the mean with `headtail`, or less
than 1.5 with `none`.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

RECIPE = """
[model]
name = "llama3"
dim = 64
n_layers = 1
n_heads = 8
head_dim = 64
ffn_dim = 64
vocab_size = 64
[training]
dataset = "synthetic"
seq_len = 8192
local_batch_size = 1
steps = 10
mixed_precision_param = "float32"
[parallelism]
context_parallel_degree = 4
context_parallel_rotate_method = "{method}"
context_parallel_load_balancer = "{balancer}"
[activation_checkpoint]
mode = "none"
[runtime]
threads_per_rank = 1
comm_thread = "off"
"""
RANKS = 4
BOUNDS = {"headtail": (1, 1.05), "none": (1.5, RANKS)}


def ticks(task):
    """Of the processor, that a thread has had; 0 where it has ended."""
    try:
        after_name = (task / "stat").read_text().rpartition(")")[2].split()
        return int(after_name[11]) + int(after_name[12])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def rank_seconds(command):
    """Of the threads with most, as many as there are ranks."""
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    most = {}
    while run.poll() is None:
        for task in pathlib.Path(f"/proc/{run.pid}/task").iterdir():
            most[task.name] = max(most.get(task.name, 0), ticks(task))
        time.sleep(0.02)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{run.stderr.read()}")
    return sorted(most.values())[-RANKS:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    good = True
    print(f"{'form':<12}{'order':<10}{'seconds of the ranks':>34}{'slowest / mean':>16}   [range]")
    with tempfile.TemporaryDirectory() as folder:
        for method in ("alltoall", "allgather"):
            for balancer, (least, greatest) in BOUNDS.items():
                recipe = pathlib.Path(folder) / "recipe.toml"
                recipe.write_text(RECIPE.format(method=method, balancer=balancer))
                runs = [rank_seconds([args.lockstep, "train", str(recipe), "--job.dump_folder", f"{folder}/out"]) for _ in range(args.rounds)]
                ratios = sorted(max(r) / statistics.mean(r) for r in runs)
                ratio = statistics.median(ratios)
                inside = least <= ratio <= greatest
                good &= inside
                seconds = " ".join(f"{t / os.sysconf('SC_CLK_TCK'):7.2f}" for t in runs[-1])
                print(f"{method:<12}{balancer:<10}{seconds:>34}{ratio:>16.3f}   [{ratios[0]:.3f} to {ratios[-1]:.3f}]{'' if inside else '  OUTSIDE'}", flush=True)
    sys.exit(0 if good else 1)


main()
