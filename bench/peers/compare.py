#!/usr/bin/env python3
"""Lockstep, PyTorch eager and PyTorch compiled, alternately, beside the floor of this machine. `make bench-peers` calls it.

compare.py LOCKSTEP_BINARY [--pairs N] [--threads N] [--cases llama/float32 gpt2/bfloat16 llama/fsdp llama/tp llama/tp_sp ...]

The floor of a step of M tokens and N parameters, from roofs measured before and after each case:
    F M / P + 28 N / B + s M / B
F: FLOPs a token, 3 (2 (W + V d) + 2 L T d), W the blocks' weights, causal half of attention; P: multiply-adds in registers;
28 bytes: AdamW reads p, g, m, v and writes p, m, v; s: bytes of activations a token with every fusion, 4 (L (24 d + 8 f) + 3 V) for
Llama, 4 (L (20 d + 5 f) + 3 V) for GPT-2; B: copy bandwidth. In bfloat16 the same floor is given: on processors whose bfloat16
products are faster it is lower, and the printed share can exceed 1.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).parent
TOKENS, SEQ = 1024, 256
SHAPES = {"llama": dict(layers=6, d=512, f=1408, vocab=32000, block=4 * 512**2 + 3 * 512 * 1408, parameters=52042240, streams=24, ffn=8),
          "gpt2": dict(layers=12, d=768, f=3072, vocab=50304, block=12 * 768**2, parameters=124475904, streams=20, ffn=5)}
CASES = [f"{m}/{t}" for m in SHAPES for t in ("float32", "bfloat16")]
# Two ranks of one thread each, float32: our keys; the peer has --layout of the same name.
DEGREE = "--parallelism.{}_degree"
LAYOUTS = {"fsdp": [DEGREE.format("data_parallel_shard"), "2", "--training.local_batch_size", "2"],
           "tp": [DEGREE.format("tensor_parallel"), "2", "--parallelism.sequence_parallel", "false"],
           "tp_sp": [DEGREE.format("tensor_parallel"), "2"]}
CASES += [f"llama/{layout}" for layout in LAYOUTS]

parser = argparse.ArgumentParser()
parser.add_argument("lockstep")
parser.add_argument("--pairs", type=int, default=7)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
args = parser.parse_args()


def last_json(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def roofs():
    with tempfile.TemporaryDirectory() as folder:
        r = last_json([args.lockstep, "bench", "--quick", "--seconds", "1", "--json", "--out", f"{folder}/roofs.toml"])
    return r["flops_per_s"][args.threads - 1], r["bytes_per_s"][args.threads - 1]


def floor_s(s, flops_per_s, bytes_per_s):
    per_token = 3 * (2 * (s["layers"] * s["block"] + s["vocab"] * s["d"]) + 2 * s["layers"] * SEQ * s["d"])
    streams = 4 * (s["layers"] * (s["streams"] * s["d"] + s["ffn"] * s["f"]) + 3 * s["vocab"])
    return per_token * TOKENS / flops_per_s + (28 * s["parameters"] + streams * TOKENS) / bytes_per_s


def show(name, x):
    print(f"  {name:24} {statistics.median(x):7.3f} s [{min(x):.3f} to {max(x):.3f}] {TOKENS / statistics.median(x):7.0f} tokens/s", flush=True)


for case in args.cases:
    model, variant = case.split("/")
    layout = LAYOUTS.get(variant)
    dtype = "float32" if layout else variant
    with tempfile.TemporaryDirectory() as folder:
        ours = [args.lockstep, "train", str(here / f"{model}.toml"), "--json", "--training.mixed_precision_param", dtype,
                "--job.dump_folder", folder, "--runtime.threads_per_rank", str(args.threads // (2 if layout else 1)), *(layout or [])]
        peer = [sys.executable, str(here / "peer.py"), "--model", model, "--dtype", dtype, "--threads", str(args.threads)]
        runs = {"lockstep": ours, "torch eager": peer, "torch compiled": peer + ["--compile"]}
        if layout:
            runs = {"lockstep": ours, f"torch {variant}": peer + ["--layout", variant]}
        times, measured = {name: [] for name in runs}, [roofs()]
        for _ in range(args.pairs):
            for name, command in runs.items():
                times[name].append(last_json(command)["step_time_s"])
    measured.append(roofs())
    flops_per_s, bytes_per_s = (max(x) for x in zip(*measured))
    floor = floor_s(SHAPES[model], flops_per_s, bytes_per_s)
    print(f"{case}, batch 4 x 256, {args.threads} threads, {args.pairs} rounds; roofs {flops_per_s / 1e9:.0f} GFLOP/s, {bytes_per_s / 1e9:.1f} GB/s")
    for name, x in times.items():
        show(name, x)
    print(f"  {'floor':24} {floor:7.3f} s; lockstep reaches {100 * floor / statistics.median(times['lockstep']):.0f} % of it")
    for name in list(runs)[1:]:
        ratios = sorted(t / o for o, t in zip(times["lockstep"], times[name]))
        print(f"  lockstep is {statistics.median(ratios):.2f} times as fast as {name} [{ratios[0]:.2f} to {ratios[-1]:.2f}]", flush=True)
