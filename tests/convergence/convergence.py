#!/usr/bin/env python3
"""Do techniques that round train as well? The demo's model, 1,000 steps, three seeds; each technique against the same run
without it, by the loss of the whole held-out split.

    python3 tests/convergence/convergence.py build/release/lockstep [--only int8] [--seeds 1 2 3] [--out build/convergence]

Four ranks on two nodes of two (by the recipe, not by the machine), so that gradients are rounded at two levels; float8 and
moments in bfloat16 on one rank of one thread, over bfloat16 weights. Products with blocks of 128 have a model whose sizes
are multiples of 128. Runs that are done are kept in the folder, and a call that was
stopped goes on. Exit code 1: a technique's mean difference is beyond its bar.
"""
import argparse
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYOUT = {"parallelism.pipeline_parallel_degree": 1, "parallelism.tensor_parallel_degree": 1,
          "parallelism.data_parallel_shard_degree": 4, "cluster.ranks_per_node": 2, "partition.preset": "hpz",
          "training.local_batch_size": 4}
ISLANDS = {**LAYOUT, "parallelism.data_parallel_shard_degree": 2, "fault_tolerance.enable": "true",
           "fault_tolerance.semi_sync_method": "local_sgd", "fault_tolerance.group_size": 2, "fault_tolerance.sync_steps": 10}
DILOCO = {**ISLANDS, "fault_tolerance.semi_sync_method": "diloco"}
ONE_RANK = {"parallelism.pipeline_parallel_degree": 1, "parallelism.tensor_parallel_degree": 1,
            "parallelism.data_parallel_shard_degree": 1, "training.local_batch_size": 16, "runtime.threads_per_rank": 1,
            "training.mixed_precision_param": "bfloat16"}
WHOLE_BLOCKS = {**ONE_RANK, "model.dim": 256, "model.n_heads": 2}
SLOW = {**ONE_RANK, "optimizer.beta2": 0.999}
BF16_MOMENTS = {"optimizer.implementation": "fused_opt_states_bf16"}


def float8(recipe):
    return {"model.converters": "float8", "quantize.linear.float8.recipe_name": recipe}


def mx(recipe):
    return {"model.converters": "mx", "quantize.linear.mx.recipe_name": recipe}


# Settings, and by how much the held-out loss may be above the one that it is compared with, on average; None: by any.
TECHNIQUES = {
    "exact": (LAYOUT, None),
    "int8": ({**LAYOUT, "partition.quantized_weights": "int8", "partition.quantized_gradients": "int8"}, 0.003),
    "int4": ({**LAYOUT, "partition.preset": "zeropp"}, 0.01),
    "int4_nearest": ({**LAYOUT, "partition.preset": "zeropp", "partition.gradient_rounding": "nearest"}, None),
    "islands": (ISLANDS, 0.02),
    "islands_int8": ({**ISLANDS, "fault_tolerance.should_quantize": "true"}, 0.02),
    "diloco": ({**DILOCO, "fault_tolerance.outer_momentum": 0.4}, 0.02),
    "diloco_default": (DILOCO, None),
    "bf16": (ONE_RANK, None),
    "tensorwise": ({**ONE_RANK, **float8("tensorwise")}, 0.005),
    "rowwise": ({**ONE_RANK, **float8("rowwise")}, 0.005),
    "rowwise_gw_hp": ({**ONE_RANK, **float8("rowwise_with_gw_hp")}, 0.005),
    "mx_floor": ({**ONE_RANK, **mx("mxfp8_cublas")}, 0.005),
    "mx_rceil": ({**ONE_RANK, **mx("mxfp8_cublas_rceil")}, 0.005),
    "bf16_256": (WHOLE_BLOCKS, None),
    "blockwise": ({**WHOLE_BLOCKS, **float8("blockwise")}, 0.005),
    "bf16_moments": ({**ONE_RANK, **BF16_MOMENTS}, 0.005),
    "bf16_999": (SLOW, None),
    "bf16_moments_999": ({**SLOW, **BF16_MOMENTS}, 0.005),
}
# With what a technique is compared, if that is not `exact`.
COMPARED_WITH = {"blockwise": "bf16_256", "bf16_moments_999": "bf16_999",
                 **dict.fromkeys(["tensorwise", "rowwise", "rowwise_gw_hp", "mx_floor", "mx_rceil", "bf16_moments"], "bf16")}
LEAST_TOKENS = 400_000


def lockstep(program, *arguments):
    return subprocess.run([program, *map(str, arguments)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def data(program, folder):
    if not (folder / "data/manifest.json").exists():
        subprocess.run([ROOT / "scripts/demo_text.sh", folder / "text"], check=True)
        lockstep(program, "data", "prepare", folder / "text", "--out", folder / "data", "--vocab", 4096, "--heldout", 0.42,
                 "--overwrite")
    return folder / "data"


def run(program, folder, name, settings, seed, steps):
    done = folder / f"{name}.{seed}.json"
    if done.exists():
        return json.loads(done.read_text())
    out = folder / f"{name}.{seed}"
    shutil.rmtree(out, ignore_errors=True)
    settings = {**settings, "debug.seed": seed, "training.steps": steps, "training.dataset_path": data(program, folder),
                "job.dump_folder": out, "validation.enable": "false", "checkpoint.interval": 100_000}
    trained = json.loads(lockstep(program, "train", "recipes/demo.toml", "--json",
                                  *(f"--{key}={value}" for key, value in settings.items())))
    evaluated = json.loads(lockstep(program, "eval", out, "--json"))
    result = {"name": name, "seed": seed, "steps": steps, "heldout_loss": evaluated["loss"],
              "heldout_tokens": evaluated["tokens"], "step_time_s": trained["step_time_s"]}
    shutil.rmtree(out)
    done.write_text(json.dumps(result))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--only", choices=TECHNIQUES, nargs="+", default=list(TECHNIQUES),
                        help="techniques to run, beside what they are compared with")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/convergence")
    args = parser.parse_args()
    args.program = str(pathlib.Path(args.program).resolve())
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    loss = {}
    references = {"exact", *COMPARED_WITH.values()}
    for seed in args.seeds:
        for name in dict.fromkeys(n for one in args.only for n in (one if one in references else COMPARED_WITH.get(one, "exact"), one)):
            result = run(args.program, args.out, name, TECHNIQUES[name][0], seed, args.steps)
            loss[name, seed] = result["heldout_loss"]
            print(f"seed {seed} {name:16} held-out loss {result['heldout_loss']:.5f} of {result['heldout_tokens']} tokens, "
                  f"{result['step_time_s']:.3f} s a step", file=sys.stderr, flush=True)
            if args.steps >= 1000 and result["heldout_tokens"] < LEAST_TOKENS:
                sys.exit(f"{result['heldout_tokens']} held-out tokens are fewer than {LEAST_TOKENS}")
    fails = []
    print(f"{'technique':16} {'mean':>9} {'deviation':>9} {'bar':>7}   by seed")
    for name in dict.fromkeys(args.only):
        if name in references:
            continue
        bar = TECHNIQUES[name][1]
        differences = [loss[name, seed] / loss[COMPARED_WITH.get(name, "exact"), seed] - 1 for seed in args.seeds]
        mean, spread = statistics.fmean(differences), statistics.stdev(differences) if len(differences) > 1 else math.nan
        limit = "" if bar is None else f"{100 * bar:.1f} %"
        print(f"{name:16} {100 * mean:+7.3f} % {100 * spread:7.3f} % {limit:>7}   "
              + ", ".join(f"{100 * d:+.3f} %" for d in differences))
        if bar is not None and not mean <= bar:
            fails.append(name)
    if fails:
        sys.exit("beyond the bar: " + ", ".join(fails))


if __name__ == "__main__":
    main()
