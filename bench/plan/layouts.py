#!/usr/bin/env python3
"""Does `lockstep plan` order layouts as this machine does? Twenty layouts of the demo's model on one to four ranks, for one global
batch: the median of several rounds in turn, beside the plan.

    layouts.py LOCKSTEP [--cluster FILE] [--rounds N] [--steps N]     without FILE this machine is measured first

Two layouts count as ordered if they differ by more than the spreads of both. Of such pairs, the rank correlation is the share in
the plan's order less the share in the other (Kendall's tau). Exit code 1 where it is below 0.9, or where the layout that is
planned fastest takes 5 % more than the fastest."""
import argparse, itertools, json, os, statistics, subprocess, sys, tempfile

here = os.path.dirname(os.path.abspath(__file__))
RECIPE = here + "/../../recipes/demo.toml"
COMMON = {"training.dataset_path": "", "training.dataset": "synthetic", "training.global_batch_size": 16, "validation.enable": "false",
          "checkpoint.enable": "false"}


def layout(tensor=1, pipeline=1, data=1, microbatch=4, schedule="1F1B", partition="none", recompute="none", **more):
    keys = {"parallelism.tensor_parallel_degree": tensor, "parallelism.pipeline_parallel_degree": pipeline,
            "parallelism.data_parallel_shard_degree": data, "parallelism.pipeline_parallel_schedule": schedule,
            "training.local_batch_size": microbatch if pipeline == 1 else 16 // data,
            "parallelism.pipeline_parallel_microbatch_size": microbatch, "partition.preset": partition,
            "activation_checkpoint.mode": recompute}
    keys.update({name.replace("__", "."): value for name, value in more.items()})
    return keys


LAYOUTS = {
    "1 rank, 16 at a time": layout(microbatch=16),
    "1 rank, 2 at a time": layout(microbatch=2),
    "1 rank, recompute": layout(microbatch=16, recompute="full"),
    "dp 2": layout(data=2, microbatch=8),
    "dp 2, 1 at a time": layout(data=2, microbatch=1),
    "dp 2, zero1": layout(data=2, microbatch=4, partition="zero1"),
    "dp 2, zero3": layout(data=2, microbatch=8, partition="zero3"),
    "dp 2, zero3, recompute": layout(data=2, microbatch=2, partition="zero3", recompute="full"),
    "tp 2": layout(tensor=2, microbatch=16),
    "tp 2, 2 at a time": layout(tensor=2, microbatch=2),
    "tp 2, whole sequences": layout(tensor=2, microbatch=8, parallelism__sequence_parallel="false"),
    "pp 2": layout(pipeline=2, microbatch=2),
    "pp 2, 8 at a time": layout(pipeline=2, microbatch=8),
    "pp 2, GPipe": layout(pipeline=2, microbatch=4, schedule="GPipe"),
    "pp 2, recompute": layout(pipeline=2, microbatch=2, recompute="full"),
    "dp 4": layout(data=4, microbatch=4),
    "dp 4, zero3, 1 at a time": layout(data=4, microbatch=1, partition="zero3"),
    "dp 2, tp 2": layout(data=2, tensor=2, microbatch=4),
    "dp 2, pp 2": layout(data=2, pipeline=2, microbatch=2),
    "tp 2, pp 2, recompute": layout(tensor=2, pipeline=2, microbatch=4, recompute="full"),
}


def lockstep(binary, command, keys, *args):
    line = [binary, command, *([RECIPE] if keys else []), *args, "--json"]
    for key, value in {**COMMON, **keys}.items() if keys else ():
        line += ["--" + key, str(value)]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(line)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--cluster")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = args.cluster or folder + "/this_machine.toml"
        if not args.cluster:
            lockstep(args.lockstep, "bench", {}, "--out", cluster)
        planned = {name: lockstep(args.lockstep, "plan", keys, "--cluster", cluster)["step_time_s"] for name, keys in LAYOUTS.items()}
        measured = {name: [] for name in LAYOUTS}
        run = ["--job.dump_folder", folder, "--training.steps", str(args.steps)]
        for _ in range(args.rounds):
            for name, keys in LAYOUTS.items():
                measured[name].append(lockstep(args.lockstep, "train", keys, *run)["step_time_s"])
    median = {name: statistics.median(times) for name, times in measured.items()}
    # Half of the middle rounds' range: of five, the second to the fourth.
    spread = {name: (sorted(times)[-2] - sorted(times)[1]) / 2 if len(times) > 3 else 0 for name, times in measured.items()}
    print(f"{'layout':<28}{'planned ms':>12}{'measured ms':>13}{'spread ms':>11}{'ratio':>8}")
    for name in sorted(median, key=median.get):
        print(f"{name:<28}{1e3 * planned[name]:>12.1f}{1e3 * median[name]:>13.1f}{1e3 * spread[name]:>11.1f}"
              f"{planned[name] / median[name]:>8.3f}")
    pairs = [(a, b) for a, b in itertools.combinations(LAYOUTS, 2) if abs(median[a] - median[b]) > spread[a] + spread[b]]
    agreed = sum((median[a] - median[b]) * (planned[a] - planned[b]) > 0 for a, b in pairs)
    correlation = (2 * agreed - len(pairs)) / len(pairs)
    first = min(planned, key=planned.get)
    loss = median[first] / min(median.values()) - 1
    print(f"{len(pairs)} of {len(LAYOUTS) * (len(LAYOUTS) - 1) // 2} pairs differ by more than their spreads; rank correlation {correlation:.2f}; "
          f"the layout that is planned fastest, {first}, takes {100 * loss:.1f} % more than the fastest")
    sys.exit(0 if correlation >= 0.9 and loss <= 0.05 else 1)


main()
