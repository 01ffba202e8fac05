#!/usr/bin/env python3
"""What 8 ranks on 4 emulated hosts send, beside the plan; how much of the links they use, and what of it hides behind compute.

    cluster.sh 4 200mbit traffic.py LOCKSTEP [--only bytes|context|plans|bandwidth|overlap] [--rates 200 1000] [--machine FILE]

Every host has two ranks, each a process, and one link. Bytes of a step are the difference of two runs of which one takes more steps,
by host, as the link's limiter counts them; headers (66 bytes a packet, acknowledgements are nothing else) are taken off.
bytes: payload within 2 % of what `check` plans. context: the same of context ranks, within 0.1 % and 64 KiB. plans: the step that `plan` says within 15 % of the measured one, on the cluster file that
`lockstep bench` has just written on these hosts. bandwidth: a step that does little but
communicate keeps the busiest host's link busy for 85 % of its time, at the first rate; at others, where compute is no longer little on few
cores, for 85 % of the time in collectives. overlap: with communication of 0.8 of compute, a step takes what `plan` says
within 15 %; where every thread, those that communicate too, has a core, at most 15 % more than the longer.
With --machine (a file of `lockstep bench`) the machine's kernels are not measured again.
Exit code 1 where a bound fails."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

from hosts import HEADER_BYTES, HOSTS, RANKS_A_HOST, mpirun, require_cluster, sent, set_rate, train
from recipes import CONTEXT, FSDP, HSDP, PARTITIONS, PIPELINE, degrees, write_recipe

LAYOUTS = {"FSDP 8": FSDP, "HSDP 2 x 4": HSDP, "tp 2 x pp 4, 1F1B": PIPELINE, **PARTITIONS}


def lockstep_json(*command):
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def planned(lockstep, path, layout):
    """Bytes of a step by host: if everything went round flat rings; as the program says."""
    check = lockstep_json(lockstep, "check", path, "--json", "--cluster.ranks_per_host", str(RANKS_A_HOST), *layout)
    chosen, ring = check["bytes_sent_by_host"], 0.0
    for group in check["groups"]:
        if group["along"] == "pp":  # transfers have one way
            return chosen, chosen
        if group["hosts"] > 1:  # of a ring in the order of ranks one member of each host sends to the next one
            ring += group["groups"] * sum(group["bytes_sent_by_a_rank"].values())
    return [ring] * HOSTS, chosen


def measured(lockstep, path, flags, few, many):
    """(wire bytes, payload bytes) of a step by host, and the summary of the longer run."""
    marks = [sent()]
    for steps in (few, many):
        summary = train(lockstep, path, "--training.steps", str(steps), *flags)
        marks.append(sent())
    wire, payload = [], []
    for h in range(HOSTS):
        bytes, packets = (((marks[2][h][i] - marks[1][h][i]) - (marks[1][h][i] - marks[0][h][i])) / (many - few) for i in (0, 1))
        wire.append(bytes)
        payload.append(bytes - HEADER_BYTES * packets)
    return wire, payload, summary


def flag(good):
    return "" if good else "  OUTSIDE"


def check_bytes(lockstep, path, layouts, rates, share, bytes):
    """Payload may differ from the plan by this share of it and by these bytes."""
    print("bytes of a step by host: planned if all went round flat rings; as the program says; payload; with headers")
    print(f"{'layout':<20}{'Mbit/s':>7}{'host':>5}{'rings MB':>10}{'program MB':>11}{'sent MB':>9}{'ratio':>8}{'wire MB':>9}{'headers':>9}{'step s':>8}")
    good = True
    for name, layout in layouts.items():
        rings, chosen = planned(lockstep, path, layout)
        for rate in rates:
            set_rate(rate)
            wire, payload, summary = measured(lockstep, path, layout, 2, 5)
            for h in range(HOSTS):
                inside = abs(payload[h] - chosen[h]) <= share * chosen[h] + bytes
                good &= inside
                step = f"{summary['step_time_s']:>8.3f}" if h == 0 else ""
                print(f"{name if h == 0 else '':<20}{rate:>7.0f}{f'n{h}':>5}{rings[h] / 1e6:>10.3f}{chosen[h] / 1e6:>11.3f}"
                      f"{payload[h] / 1e6:>9.3f}{payload[h] / chosen[h]:>8.4f}{wire[h] / 1e6:>9.3f}"
                      f"{100 * (wire[h] / payload[h] - 1):>7.1f} %{step}{flag(inside)}", flush=True)
    return good


def placed(ranks_a_process):
    return ["--cluster.ranks_per_host", str(RANKS_A_HOST), "--cluster.ranks_per_process", str(ranks_a_process)]


def plan_s(lockstep, path, cluster, *flags):
    return lockstep_json(lockstep, "plan", path, "--json", "--cluster", cluster, *flags)["step_time_s"]


def cluster_file(lockstep, folder, machine, **where):
    """Of these hosts at their rate of now; `where` as for mpirun."""
    path = os.path.join(folder, "cluster.toml")
    mpirun([lockstep, "bench", "--out", path, *(["--machine", machine] if machine else [])], **where)
    return path


def check_plans(lockstep, folder, rates, machine):
    path = write_recipe(folder, "plans", dim=256, layers=6, vocab=2048, seq=128)
    print("\nsteps, ranks as processes and as threads of one process a host: planned on the cluster file of these hosts; measured, the median of 3 runs")
    print(f"{'layout':<20}{'Mbit/s':>7}{'processes':>11}{'planned s':>11}{'measured s':>11}{'planned / measured':>20}")
    good = True
    for rate in rates:
        set_rate(rate)
        cluster = cluster_file(lockstep, folder, machine)
        for name, layout in LAYOUTS.items():
            for a_process in (1, RANKS_A_HOST):
                where = placed(a_process)
                plan = plan_s(lockstep, path, cluster, *layout, *where)
                steps = sorted(train(lockstep, path, *layout, "--training.steps", "6", a_host=RANKS_A_HOST // a_process)["step_time_s"]
                               for _ in range(3))
                inside = abs(plan / steps[1] - 1) <= 0.15
                good &= inside
                processes = HOSTS * RANKS_A_HOST // a_process
                print(f"{name:<20}{rate:>7.0f}{processes:>11}{plan:>11.3f}{steps[1]:>11.3f}{plan / steps[1]:>20.3f}{flag(inside)}", flush=True)
        machine = cluster  # its kernels
    return good


def check_bandwidth(lockstep, folder, rates):
    path = write_recipe(folder, "bandwidth", dim=1024, layers=1, vocab=512, seq=16)
    print("\nFSDP over 8 ranks, 16 tokens each, one layer of 12.8 million parameters: wire bytes of the busiest host / time / rate")
    print(f"{'Mbit/s':>7}{'wire MB':>9}{'step s':>8}{'of the link':>13}{'in collectives s':>18}{'of the link':>13}")
    good = True
    for rate in rates:
        set_rate(rate)
        wire, _, summary = measured(lockstep, path, [*FSDP, "--profile"], 1, 5)
        step = summary["step_time_s"]
        collectives = sum(op["time_s"] for op in summary["profile"]["ops"] if op["op"] in ("all_gather", "reduce_scatter", "all_reduce"))
        busy_s = max(wire) / (rate * 1e6 / 8)
        whole_step = rate == rates[0]
        inside = busy_s / (step if whole_step else collectives) >= 0.85
        good &= inside
        print(f"{rate:>7.0f}{max(wire) / 1e6:>9.2f}{step:>8.3f}{100 * busy_s / step:>11.1f} %{collectives:>18.3f}"
              f"{100 * busy_s / collectives:>11.1f} %{flag(inside)}", flush=True)
    return good


def check_overlap(lockstep, folder, machine, hosts, a_host):
    """The rate is chosen: that at which communication alone, as measured at another rate, takes 0.8 of compute alone."""
    seq, batch, few_tokens = 512, 2, 16
    path = write_recipe(folder, "overlap", dim=256, layers=8, vocab=512, seq=seq)
    ranks = hosts * a_host
    flags = [*degrees(data_parallel_shard=ranks), "--training.steps", "6", "--runtime.comm_thread", "on"]
    job = lambda *more: train(lockstep, path, *flags, *more, hosts=hosts, a_host=a_host)
    run = lambda *more: job("--training.local_batch_size", str(batch), *more)
    alone = lambda: job("--training.seq_len", str(few_tokens))["step_time_s"]
    set_rate(None)
    compute = run()["step_time_s"]
    set_rate(400)
    rate = 400 * alone() / (0.8 * compute)
    set_rate(rate)
    communication, both = alone(), run("--profile")
    step = both["step_time_s"]
    busy = sum(op["time_s"] for op in both["profile"]["ops"] if op["thread"] == "communication")
    ratio = step / max(compute, communication)
    inline = run("--runtime.comm_thread", "off")["step_time_s"]
    cluster = cluster_file(lockstep, folder, machine, hosts=hosts, a_host=a_host)
    plan = plan_s(lockstep, path, cluster, *flags, "--training.local_batch_size", str(batch))
    crowded = 2 * ranks > len(os.sched_getaffinity(0))
    inside = abs(plan / step - 1) <= 0.15
    hidden = crowded or ratio <= 1.15
    print(f"\noverlap, FSDP over {ranks} ranks on {hosts} hosts, {seq * batch} tokens each, 8 layers, links of {rate:.0f} Mbit/s: compute (no limit, what is sent is "
          f"copied in memory) {compute:.3f} s, communication ({few_tokens} tokens) {communication:.3f} s = {communication / compute:.2f} of it")
    print(f"both {step:.3f} s = {ratio:.3f} of the longer{' (no bound: threads outnumber cores)' if crowded else flag(hidden)}, communication threads busy for {busy:.3f} s; without them {inline:.3f} s; "
          f"planned {plan:.3f} s = {plan / step:.3f} of measured{flag(inside)}",
          flush=True)
    return inside and hidden


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--only", choices=["bytes", "context", "plans", "bandwidth", "overlap"])
    parser.add_argument("--rates", nargs="+", type=float, default=[200, 1000], help="Mbit/s of a host")
    parser.add_argument("--machine", help="file of `lockstep bench`, for planned steps")
    args = parser.parse_args()
    require_cluster()
    lockstep = os.path.abspath(args.lockstep)
    machine = args.machine and os.path.abspath(args.machine)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        if args.only in (None, "bytes"):
            path = write_recipe(folder, "bytes", dim=256, layers=6, vocab=2048, seq=128)
            good &= check_bytes(lockstep, path, LAYOUTS, args.rates, 0.02, 0)
        if args.only in (None, "context"):
            path = write_recipe(folder, "context", dim=256, layers=4, vocab=512, seq=4096)
            good &= check_bytes(lockstep, path, CONTEXT, args.rates[:1], 0.001, 65536)
        if args.only in (None, "plans"):
            good &= check_plans(lockstep, folder, args.rates, machine)
        if args.only in (None, "bandwidth"):
            good &= check_bandwidth(lockstep, folder, args.rates)
        if args.only in (None, "overlap"):
            good &= check_overlap(lockstep, folder, machine, hosts=2, a_host=1)
            good &= check_overlap(lockstep, folder, machine, HOSTS, RANKS_A_HOST)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
