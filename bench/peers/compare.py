#!/usr/bin/env python3
"""Lockstep, PyTorch eager and PyTorch compiled, alternately, beside the floor of this machine. `make bench-peers` calls it.

compare.py LOCKSTEP_BINARY [--pairs N] [--threads N] [--cases llama/float32 gpt2/bfloat16 llama/fsdp llama/tp llama/tp_sp ...]

The floor (bench/floor.py) stands on roofs measured before and after each case; in bfloat16 on that of bfloat16 products.
"""
import argparse
import pathlib
import statistics
import sys
import tempfile

here = pathlib.Path(__file__).parent
sys.path.insert(0, str(here.parent))
from floor import Shape, floor_s, last_json, roofs

SEQUENCES = {"ring": (1, 8192)}  # and their tokens, in a step
SHAPES = {"llama": Shape(6, 512, 1408, 32000), "gpt2": Shape(12, 768, 3072, 50304, "gpt2")}
CASES = [f"{m}/{t}" for m in SHAPES for t in ("float32", "bfloat16")]
# Two ranks of one thread each, float32: our keys; the peer has --layout of the same name.
DEGREE = "--parallelism.{}_degree"
LAYOUTS = {"fsdp": [DEGREE.format("data_parallel_shard"), "2", "--training.local_batch_size", "2"],
           "tp": [DEGREE.format("tensor_parallel"), "2", "--parallelism.sequence_parallel", "false"],
           "tp_sp": [DEGREE.format("tensor_parallel"), "2"],
           # Two stages, four microbatches of one sequence.
           "pp": [DEGREE.format("pipeline_parallel"), "2"],
           # One sequence of 8,192 tokens, half of it on each rank.
           "ring": [DEGREE.format("context_parallel"), "2", "--parallelism.context_parallel_rotate_method", "alltoall"]}
CASES += [f"llama/{layout}" for layout in LAYOUTS]

parser = argparse.ArgumentParser()
parser.add_argument("lockstep")
parser.add_argument("--pairs", type=int, default=7)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=6, help="timed in each run")
parser.add_argument("--peers", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
args = parser.parse_args()


def roofs_now(dtype):
    return [x[args.threads - 1] for x in roofs(args.lockstep, dtype)]


def show(name, x, tokens):
    print(f"  {name:28} {statistics.median(x):7.3f} s [{min(x):.3f} to {max(x):.3f}] {tokens / statistics.median(x):7.0f} tokens/s", flush=True)


for case in args.cases:
    model, variant = case.split("/")
    layout = LAYOUTS.get(variant)
    batch, seq = SEQUENCES.get(variant, (4, 256))
    dtype = "float32" if layout else variant
    with tempfile.TemporaryDirectory() as folder:
        ours = [args.lockstep, "train", str(here / f"{model}.toml"), "--json", "--training.mixed_precision_param", dtype,
                "--training.steps", str(args.steps + 2), "--training.local_batch_size", str(batch), "--training.seq_len", str(seq),
                "--job.dump_folder", folder, "--runtime.threads_per_rank", str(args.threads // (2 if layout else 1)), *(layout or [])]
        peer = [sys.executable, str(here / "peer.py"), "--model", model, "--dtype", dtype, "--threads", str(args.threads),
                "--steps", str(args.steps), "--batch", str(batch), "--seq", str(seq)]
        runs = {"lockstep": ours, "torch eager": peer, "torch compiled": peer + ["--compile"]}
        runs = {name: run for name, run in runs.items() if name.split()[-1] in ["lockstep", *args.peers]}
        if layout:
            runs = {"lockstep": ours, f"torch {variant}": peer + ["--layout", variant]}
            if variant == "ring":  # its steps are long
                runs[f"torch {variant}"] += ["--warm-up", "1"]
            if variant.startswith("tp"):
                runs[f"torch {variant} loss parallel"] = peer + ["--layout", variant, "--loss-parallel"]
        times, measured = {name: [] for name in runs}, [roofs_now(dtype)]
        for _ in range(args.pairs):
            for name, command in runs.items():
                times[name].append(last_json(command)["step_time_s"])
    measured.append(roofs_now(dtype))
    flops_per_s, bytes_per_s = (max(x) for x in zip(*measured))
    floor = floor_s(SHAPES[model], batch * seq, seq, flops_per_s, bytes_per_s, dtype=dtype)
    print(f"{case}, batch {batch} x {seq}, {args.threads} threads, {args.pairs} rounds; roofs {flops_per_s / 1e9:.0f} GFLOP/s, {bytes_per_s / 1e9:.1f} GB/s")
    for name, x in times.items():
        show(name, x, batch * seq)
    print(f"  {'floor':28} {floor:7.3f} s; lockstep reaches {100 * floor / statistics.median(times['lockstep']):.0f} % of it")
    for name in list(runs)[1:]:
        ratios = sorted(t / o for o, t in zip(times["lockstep"], times[name]))
        print(f"  lockstep is {statistics.median(ratios):.2f} times as fast as {name} [{ratios[0]:.2f} to {ratios[-1]:.2f}]", flush=True)
