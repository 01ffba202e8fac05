#!/usr/bin/env python3
"""Low-bandwidth partitionings on 4 emulated hosts, by turns: measured steps beside the plan's, and their ratios beside those that
the planned bytes and compute give; PyTorch's FSDP2 over gloo where this Python has torch.

    cluster.sh 4 200mbit PYTHON partitions.py LOCKSTEP [--a-host 2 4] [--rates 200 100 1000] [--out FOLDER] [--machine FILE]

The model of docs/cluster.md, 8 microbatches of a sequence a rank; 2 ranks a host, or 4 in packages of 2. At the first rate three
rounds, in each of which every layout takes --steps steps (DiLoCo: 10, of which one meets) after two that do not count; at other rates
one round. Each run is kept in the folder, so that a call which was stopped goes on. Exit code 1: a plan is more than 15 % (at 1,000
Mbit/s 25 %) beside what was measured, or a ratio is below 90 % of the planned one."""
import argparse
import json
import os
import pathlib
import statistics
import sys

from hosts import HOSTS, last_json, mpirun, require_cluster, set_rate, train
from recipes import INT8, degrees, write_recipe
from traffic import cluster_file, lockstep_json, plan_s

DIM, LAYERS, VOCAB, SEQ, MICROBATCHES, MEETING = 256, 6, 2048, 128, 8, 10
# (of, over, what was published for it on GPUs)
RATIOS = [("zero3", "hpz", None), ("zero3", "zeropp", "2.16 (ZeRO++ over ZeRO-3, 384 V100, 100 Gbit/s; arXiv 2306.10209)"),
          ("zeropp", "three_level", "1.71 (three levels over ZeRO++, 384 GCDs; arXiv 2501.04266)")]


def layouts(ranks, a_host):
    """Flags by name, and the steps of a run that count."""
    sharded = degrees(data_parallel_shard=ranks)
    levels = ["--cluster.ranks_per_node", str(a_host), "--cluster.ranks_per_package", "2"]
    preset = lambda name: [*sharded, *levels, "--partition.preset", name]
    islands = [*degrees(data_parallel_shard=a_host), "--fault_tolerance.enable", "true", "--fault_tolerance.semi_sync_method", "diloco",
               "--fault_tolerance.group_size", str(HOSTS), "--fault_tolerance.sync_steps", str(MEETING)]
    return {"zero3": preset("zero3"), "hpz": preset("hpz"), "zeropp": preset("zeropp"), "three_level": preset("three_level"),
            "three_level, int8": [*preset("three_level"), *INT8], "DiLoCo": islands}


class Runs:
    """One JSON file a run."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def get(self, name, make):
        path = self.folder / (name.replace(", ", "-").replace(" ", "_") + ".json")
        if not path.exists():
            path.write_text(json.dumps(make()))
            print(name, path.read_text(), file=sys.stderr, flush=True)
        return json.loads(path.read_text())


def measure(args, runs, recipe, a_host, rate, rounds):
    """Seconds of a step by layout, a list of rounds; the planned seconds; and the planned bytes of the busiest host."""
    ranks = HOSTS * a_host
    batch = ["--training.global_batch_size", str(ranks * MICROBATCHES)]
    where = dict(a_host=a_host)
    placed = ["--cluster.ranks_per_host", str(a_host)]
    set_rate(rate)
    key = f"{a_host}_a_host-{rate:.0f}"
    cluster = runs.folder / f"cluster-{key}.toml"
    if not cluster.exists():
        os.replace(cluster_file(args.lockstep, str(runs.folder), args.machine, **where), cluster)
    args.machine = args.machine or str(cluster)  # its kernels
    steps, planned, sent = {}, {}, {}
    for name, flags in layouts(ranks, a_host).items():
        planned[name] = plan_s(args.lockstep, recipe, str(cluster), *flags, *batch, *placed)
        sent[name] = max(lockstep_json(args.lockstep, "check", recipe, "--json", *flags, *batch, *placed)["bytes_sent_by_host"])
    for turn in range(rounds):
        for name, flags in layouts(ranks, a_host).items():
            count = MEETING if name == "DiLoCo" else args.steps
            flags = [*flags, *batch, "--training.steps", str(count + 2)]
            one = runs.get(f"{key}-{turn}-{name}", lambda: {"step_s": train(args.lockstep, recipe, *flags, **where)["step_time_s"]})
            steps.setdefault(name, []).append(one["step_s"])
        if args.torch:
            sizes = dict(dim=DIM, layers=LAYERS, heads=4, ffn=DIM * 11 // 4, vocab=VOCAB, seq=SEQ, replicate=1, steps=args.steps, microbatches=MICROBATCHES)
            peer = [sys.executable, str(pathlib.Path(__file__).with_name("peer_pytorch.py")), "--address", "10.77.0.1"]
            command = peer + [x for k, v in sizes.items() for x in (f"--{k}", str(v))]
            one = runs.get(f"{key}-{turn}-pytorch", lambda: {"step_s": last_json(mpirun(command, **where))["step_time_s"]})
            steps.setdefault("PyTorch FSDP2", []).append(one["step_s"])
    return steps, planned, sent


def report(a_host, rate, steps, planned, sent):
    print(f"\n{HOSTS} hosts of {a_host} ranks, {rate:.0f} Mbit/s: seconds a step, median [least to most] of {len(next(iter(steps.values())))}")
    print(f"{'layout':<20}{'MB a host':>10}{'planned s':>11}  {'measured s':<26}{'planned / measured':>19}")
    good, bound = True, 0.25 if rate >= 1000 else 0.15
    for name, all_s in steps.items():
        median = statistics.median(all_s)
        line = f"{name:<20}"
        spread = f"{median:.3f} [{min(all_s):.3f} to {max(all_s):.3f}]"
        if name not in planned:
            print(f"{line}{'':>10}{'':>11}  {spread:<26}")
            continue
        inside = abs(planned[name] / median - 1) <= bound
        good &= inside
        print(f"{line}{sent[name] / 1e6:>10.1f}{planned[name]:>11.3f}  {spread:<26}{planned[name] / median:>19.3f}{'' if inside else '  OUTSIDE'}")
    for slow, fast, published in RATIOS:
        pairs = [a / b for a, b in zip(steps[slow], steps[fast])]
        ratio, plan = statistics.median(pairs), planned[slow] / planned[fast]
        inside = ratio >= 0.9 * plan
        good &= inside
        print(f"{fast} is {ratio:.2f} [{min(pairs):.2f} to {max(pairs):.2f}] times as fast as {slow}; planned {plan:.2f}"
              f"{f'; published {published}' if published else ''}{'' if inside else '  BELOW 90 %'}")
    sys.stdout.flush()
    return good


def has_torch():
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--a-host", nargs="+", type=int, default=[2, 4], help="ranks of a host")
    parser.add_argument("--rates", nargs="+", type=float, default=[200, 100, 1000], help="Mbit/s of a host")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3, help="at the first rate")
    parser.add_argument("--out", default="build/partitions")
    parser.add_argument("--machine", help="file of `lockstep bench`")
    args = parser.parse_args()
    require_cluster()
    args.lockstep, args.torch = os.path.abspath(args.lockstep), has_torch()
    args.machine = args.machine and os.path.abspath(args.machine)
    runs = Runs(args.out)
    recipe = write_recipe(str(runs.folder), "partitions", DIM, LAYERS, VOCAB, SEQ)
    good = True
    for a_host in args.a_host:
        for rate in args.rates:
            good &= report(a_host, rate, *measure(args, runs, recipe, a_host, rate, args.rounds if rate == args.rates[0] else 1))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
