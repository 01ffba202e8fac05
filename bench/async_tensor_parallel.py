#!/usr/bin/env python3
"""What asynchronous tensor parallelism hides: two ranks of one thread over slowed local links, with it and without, alternately.

    async_tensor_parallel.py LOCKSTEP [--rounds N] [--links BYTES_PER_S ...] [--shard N]

With --shard N there are 2 N ranks, and parameters are split over N of them: their gathers and reductions are under way at the
same time as the blocks. Each rank needs a core for its thread and a share of another for the thread that communicates. `compute` is the step over links
without a limit, `communication` what a rank sends in a step over the link's rate; the last column is the step against the longer
of the two.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

from floor import last_json

RECIPE = """
[model]
name = "llama3"
dim = 1024
n_layers = 2
n_heads = 16
vocab_size = 2048
[training]
dataset = "synthetic"
seq_len = 512
local_batch_size = 1
global_batch_size = {batch}
steps = 6
mixed_precision_param = "float32"
[parallelism]
tensor_parallel_degree = 2
data_parallel_shard_degree = {shard}
[activation_checkpoint]
mode = "none"
[runtime]
threads_per_rank = 1
comm_thread = "on"
"""
ASYNC = ["--parallelism.enable_async_tensor_parallel", "true"]

parser = argparse.ArgumentParser()
parser.add_argument("lockstep")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--links", nargs="+", type=float, default=[2.4e8, 4.8e8, 9.6e8])
parser.add_argument("--shard", type=int, default=1)
args = parser.parse_args()

with tempfile.TemporaryDirectory() as folder:
    recipe = pathlib.Path(folder) / "recipe.toml"
    recipe.write_text(RECIPE.format(shard=args.shard, batch=2 * args.shard))

    def step_s(more):
        return last_json([args.lockstep, "train", str(recipe), "--json", "--job.dump_folder", folder + "/out"] + more)["step_time_s"]

    checked = subprocess.run([args.lockstep, "check", str(recipe), "--json"], capture_output=True, text=True, check=True)
    sent = sum(sum(g["bytes_sent_by_a_rank"].values()) for g in json.loads(checked.stdout)["groups"])
    print(f"{'link MB/s':>10}{'compute':>10}{'communication':>15}{'plain':>9}{'async':>9}{'plain / longer':>16}{'async / longer':>16}   [range]")
    for link in args.links:
        limit = ["--runtime.local_link_bytes_per_s", str(link)]
        rounds = [[step_s(ASYNC), step_s(limit), step_s(limit + ASYNC), step_s([])] for _ in range(args.rounds)]
        longer = [max(min(r[0], r[3]), sent / link) for r in rounds]
        ratios = sorted(r[2] / x for r, x in zip(rounds, longer))
        compute, plain, hidden = (statistics.median(x) for x in ([min(r[0], r[3]) for r in rounds], [r[1] for r in rounds], [r[2] for r in rounds]))
        plain_ratio = statistics.median(r[1] / x for r, x in zip(rounds, longer))
        print(f"{link / 1e6:>10.0f}{compute:>9.3f}s{sent / link:>14.3f}s{plain:>8.3f}s{hidden:>8.3f}s{plain_ratio:>16.2f}"
              f"{statistics.median(ratios):>16.2f}   [{ratios[0]:.2f} to {ratios[-1]:.2f}]", flush=True)
