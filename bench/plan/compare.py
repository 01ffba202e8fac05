#!/usr/bin/env python3
"""What `lockstep plan` says beside what `lockstep train` takes: seven models and layouts whose shapes are not in the table of
`lockstep bench`, and the overlap of slow links with compute.

    compare.py LOCKSTEP [--cluster FILE]     without FILE this machine is measured first

Exit code 1 where a plan is off by more than 15 % (25 % where ranks outnumber cores), or overlap is not within 15 % of the longer
of compute and communication."""
import argparse, json, os, subprocess, sys, tempfile

here = os.path.dirname(os.path.abspath(__file__))
RECIPES = ["one_rank", "two_threads", "fsdp", "tensor_parallel", "pipeline", "four_ranks", "zero1_recompute"]


def lockstep(binary, *args):
    done = subprocess.run([binary, *args, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(args)}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def accuracy(binary, cluster, folder, cores):
    print(f"{'recipe':<18}{'ranks':>6}{'planned ms':>12}{'measured ms':>13}{'ratio':>8}{'bound':>8}")
    good = True
    for name in RECIPES:
        path = f"{here}/{name}.toml"
        planned = lockstep(binary, "plan", path, "--cluster", cluster)
        measured = lockstep(binary, "train", path, "--job.dump_folder", folder)["step_time_s"]
        ratio, bound = planned["step_time_s"] / measured, 0.25 if planned["ranks"] > cores else 0.15
        inside = abs(ratio - 1) <= bound
        good &= inside
        print(f"{name:<18}{planned['ranks']:>6}{1e3 * planned['step_time_s']:>12.2f}{1e3 * measured:>13.2f}{ratio:>8.3f}"
              f"{100 * bound:>6.0f} %{'' if inside else '  OUTSIDE'}", flush=True)
    return good


def overlap(binary, cluster, folder):
    """Links from fast to slow; the longer of compute (the step with fast links) and communication (its thread's busy time)."""
    path = f"{here}/overlap.toml"
    common = ["--job.dump_folder", folder]
    compute = lockstep(binary, "train", path, *common)["step_time_s"]
    print(f"\noverlap: compute alone {1e3 * compute:.1f} ms")
    print(f"{'link MB/s':>10}{'communication ms':>18}{'step ms':>10}{'of the longer':>15}{'planned ms':>12}{'inline ms':>11}")
    good = True
    for rate in [2e9, 4e8, 2e8, 1e8]:
        link = ["--runtime.local_link_bytes_per_s", str(rate)]
        run = lockstep(binary, "train", path, "--profile", "--cluster", cluster, *link, *common)
        step = run["step_time_s"]
        communication = sum(op["time_s"] for op in run["profile"]["ops"] if op["thread"] == "communication")
        ratio = step / max(compute, communication)
        planned = lockstep(binary, "plan", path, "--cluster", cluster, *link)["step_time_s"]
        inline = lockstep(binary, "plan", path, "--cluster", cluster, *link, "--runtime.comm_thread", "off")["step_time_s"]
        good &= ratio <= 1.15
        print(f"{rate / 1e6:>10.0f}{1e3 * communication:>18.1f}{1e3 * step:>10.1f}{ratio:>15.3f}{1e3 * planned:>12.1f}"
              f"{1e3 * inline:>11.1f}{'' if ratio <= 1.15 else '  OUTSIDE'}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--cluster")
    parser.add_argument("--only", choices=["accuracy", "overlap"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = args.cluster
        if not cluster:
            cluster = folder + "/this_machine.toml"
            lockstep(args.lockstep, "bench", "--out", cluster)
        cores = len(os.sched_getaffinity(0))
        good = True
        if args.only != "overlap":
            good &= accuracy(args.lockstep, cluster, folder, cores)
        if args.only != "accuracy":
            good &= overlap(args.lockstep, cluster, folder)
    sys.exit(0 if good else 1)


main()
