#!/usr/bin/env python3
"""Recompute: bytes and step time of no, selective (by op, every second layer) and full recompute on four shapes, each beside
activation_checkpoint.mode = "budget" with exactly that policy's bytes.

    recompute.py LOCKSTEP --cluster FILE [--only NAME ...] [--rounds N]

FILE is what `lockstep bench` wrote: its rows price what is computed again. Policy and budget run in turn, N rounds; medians. Exit
code 1 where a budget's plan has more bytes or takes longer than the policy's, or its measured step takes over 3 % longer.
"""
import argparse
import os
import statistics
import sys
import tempfile

from floor import last_json

here = os.path.dirname(os.path.abspath(__file__))
TWO_THREADS = {"runtime.threads_per_rank": 2}
SHAPES = {
    "fsdp": ("plan/fsdp.toml", {"training.local_batch_size": 1}),
    "tensor_parallel": ("plan/tensor_parallel.toml", {"model.n_layers": 6}),
    "long_sequence": ("plan/two_threads.toml", {"model.dim": 256, "model.n_layers": 8, "model.n_heads": 4, "model.n_kv_heads": 2,
                                                "model.ffn_dim": 704, "model.vocab_size": 2048, "training.local_batch_size": 1,
                                                "training.seq_len": 2048}),
    "gpt2": ("peers/gpt2.toml", {"model.dim": 384, "model.n_layers": 8, "model.n_heads": 6, "model.vocab_size": 8192}),
}
MODE, OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
POLICIES = {"none": {MODE: "none"}, "every 2nd layer": {MODE: "selective", OPTION: "2"}, "by op": {MODE: "selective", OPTION: "op"},
            "full": {MODE: "full"}}


def flags(keys):
    return [x for key, value in keys.items() for x in (f"--{key}", str(value))]


def shape(lockstep, cluster, name, rounds, folder):
    path, keys = SHAPES[name]
    path = f"{here}/{path}"
    keys = {**keys, "cluster.file": cluster, "training.steps": 7}

    def run(policy):
        return last_json([lockstep, "train", path, "--json", "--job.dump_folder", folder] + flags({**keys, **policy}))

    def plan(policy):
        p = last_json([lockstep, "plan", path, "--json", "--cluster", cluster] + flags({**keys, **policy}))
        return p["stages"][0]["bytes"]["total"], p["step_time_s"]

    head = f"{'bytes a rank':>13}{'resident':>13}{'planned ms':>12}{'step ms':>9}"
    print(f"\n{name:<18}{head}   budget:{head}{'ratio':>7}")
    good = True
    for title, policy in POLICIES.items():
        budget, planned_s = plan(policy)
        solved = {MODE: "budget", "activation_checkpoint.budget_bytes": budget}
        used, solved_s = plan(solved)
        theirs, ours = [], []
        for _ in range(rounds):
            theirs.append(run(policy))
            ours.append(run(solved))
        times = [statistics.median(r["step_time_s"] for r in x) for x in (theirs, ours)]
        resident = [max(r["peak_bytes_resident"] for r in x) / 2**20 for x in (theirs, ours)]
        inside = used <= budget and solved_s <= 1.001 * planned_s and times[1] <= 1.03 * times[0]
        good &= inside
        row = [f"{n:>13}{r:>9.0f} MiB{1e3 * p:>12.1f}{1e3 * t:>9.1f}"
               for n, r, p, t in zip((budget, used), resident, (planned_s, solved_s), times)]
        print(f"{title:<18}{row[0]}          {row[1]}{times[1] / times[0]:>7.3f}{'' if inside else '  OUTSIDE'}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        good = [shape(args.lockstep, os.path.abspath(args.cluster), name, args.rounds, folder) for name in args.only]
    sys.exit(0 if all(good) else 1)


main()
