#!/usr/bin/env python3
"""Losses, gradient norms and memory of small runs, bit by bit, that a change of structure must not change.

    record.py LOCKSTEP                       compares with record.json beside this file; exit code 1 and one line for each difference
    record.py LOCKSTEP --write               writes record.json
    record.py LOCKSTEP --against OTHER       compares two programs on this machine, with its best instruction set, too

Each case trains twenty steps on synthetic data: on the reference kernels, and on the cpu kernels for AVX2.
"""
import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

STEPS = 20

BASE = {
    "model.dim": 32, "model.n_layers": 4, "model.n_heads": 4, "model.n_kv_heads": 2, "model.ffn_dim": 48,
    "model.vocab_size": 61, "model.rope_scaling_factor": 1.0,
    "training.dataset": "synthetic", "training.seq_len": 16, "training.local_batch_size": 4, "training.steps": STEPS,
    "training.mixed_precision_param": "float32", "debug.synthetic_masked": 0.2, "optimizer.lr": 1e-2,
    "lr_scheduler.warmup_steps": 4, "activation_checkpoint.mode": "none", "metrics.log_freq": 1,
    "runtime.threads_per_rank": 1,
}
GPT2 = {"model.name": "gpt2", "model.n_kv_heads": None, "model.rope_scaling_factor": None, "model.dropout": 0.1}
BF16 = {"training.mixed_precision_param": "bfloat16"}
F64 = {"training.dtype": "float64", "training.mixed_precision_param": "float64"}


def data(replicate=1, shard=1):
    return {"parallelism.data_parallel_replicate_degree": replicate, "parallelism.data_parallel_shard_degree": shard,
            "training.local_batch_size": 8 // (replicate * shard)}


def tp(degree, sequence_parallel=True):
    return {"parallelism.tensor_parallel_degree": degree, "parallelism.sequence_parallel": sequence_parallel}


def pipeline(schedule, degree=2, **keys):
    return {"parallelism.pipeline_parallel_degree": degree, "parallelism.pipeline_parallel_schedule": schedule,
            "parallelism.pipeline_parallel_first_stage_less_layers": 0,
            "parallelism.pipeline_parallel_last_stage_less_layers": 0, **keys}


def preset(name):
    return {"partition.preset": name}


def recompute(mode, option="2", **keys):
    return {"activation_checkpoint.mode": mode, "activation_checkpoint.selective_ac_option": option, **keys}


PER_STAGE = {"parallelism.pipeline_parallel_layers_per_stage": 1}

# name: (keys, processes). One process: ranks are threads.
CASES = {
    "one_rank": ({}, 1),
    "one_rank_bfloat16": (BF16, 1),
    "one_rank_float64": (F64, 1),
    "bfloat16_throughout": ({"training.dtype": "bfloat16", **BF16}, 1),
    "bfloat16_wide_stream": ({**BF16, "training.fp32_residual_connection": True, "training.mixed_precision_norm": "float32"}, 1),
    "ddp": (data(2) | preset("none"), 1),
    "zero1": (data(1, 2) | preset("zero1"), 1),
    "zero2": (data(1, 2) | preset("zero2") | BF16, 1),
    "zero3": (data(1, 2) | preset("zero3") | BF16, 1),
    "zero3_float64": (data(1, 4) | preset("zero3") | F64, 1),
    "hsdp": (data(2, 2) | BF16, 1),
    "tp": (tp(2, False), 1),
    "tp_sequence_parallel": (tp(2) | BF16, 1),
    "tp_more_than_kv_heads": (tp(4) | F64, 1),
    "tp_zero3": (tp(2) | data(1, 2) | BF16, 1),
    "recompute_full": (recompute("full") | BF16, 1),
    "recompute_every_second_layer": (recompute("selective", "2") | data(1, 2), 1),
    "recompute_by_op": (recompute("selective", "op") | BF16, 1),
    "recompute_budget": (recompute("memory_budget", **{"activation_checkpoint.memory_budget": 0.4}), 1),
    "loss_in_chunks": ({"training.loss_chunk_tokens": 16, **BF16}, 1),
    "microbatches": ({"training.local_batch_size": 2, "training.global_batch_size": 7}, 1),
    "pp_1f1b": (pipeline("1F1B"), 1),
    "pp_gpipe": (pipeline("GPipe") | BF16, 1),
    "pp_interleaved": (pipeline("Interleaved1F1B", **PER_STAGE), 1),
    "pp_looped_bfs": (pipeline("LoopedBFS", **PER_STAGE), 1),
    "pp_zb_h1": (pipeline("ZB-H1") | BF16, 1),
    "pp_interleaved_zero_bubble": (pipeline("InterleavedZeroBubble", **PER_STAGE), 1),
    "pp_zbv": (pipeline("ZBVZeroBubble", **PER_STAGE) | F64, 1),
    "pp_3d": (pipeline("1F1B") | data(1, 2) | tp(2) | recompute("full") | BF16, 1),
    "gpt2_dropout": (GPT2, 1),
    "gpt2_dropout_3d": (GPT2 | pipeline("1F1B") | data(1, 2) | tp(2) | BF16, 1),
    "llama_tied_qwen": ({"model.tie_embeddings": 1, "model.qk_norm": 1, "model.qkv_bias": 1} | tp(2), 1),
    "sliding_window_documents": ({"model.sliding_window": 6, "training.document_mask": True}, 1),
    "processes_zero3": (data(1, 4) | preset("zero3") | BF16, 2),
    "processes_tp_pp": (pipeline("1F1B") | tp(2), 2),
    "processes_hsdp_gpt2": (GPT2 | data(2, 2), 4),
}


def kernel_sets(best):
    sets = {"reference": {"runtime.kernels": "reference"}, "avx2": {"runtime.instruction_set": "avx2"}}
    return {**sets, "best": {}} if best else sets


def flags(keys):
    return [f"--{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items() if value is not None]


def command_of(lockstep, processes):
    if processes == 1:
        return [lockstep]
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(processes), lockstep]


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def outcome(lockstep, keys, processes):
    """The bits of a run: losses and norms as hexadecimal floats, bytes of each pipeline rank by kind."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "r.toml").write_text("")
        run(command_of(lockstep, processes) + ["train", "r.toml", "--quiet"] + flags(keys), folder)
        lines = pathlib.Path(folder, "outputs/metrics.jsonl").read_text().splitlines()
        steps = [json.loads(line) for line in lines if '"grad_norm"' in line]
        checked = json.loads(run([lockstep, "check", "r.toml", "--json"] + flags(keys), folder))
    assert len(steps) == STEPS, f"{len(steps)} steps were written"
    return {"loss": [s["loss_metrics/global_avg_loss"].hex() for s in steps],
            "grad_norm": [s["grad_norm"].hex() for s in steps],
            "bytes": [stage["bytes"] for stage in checked["stages"]]}


def record(lockstep, best):
    out = {}
    for name, (keys, processes) in CASES.items():
        out[name] = {}
        for kernels, choice in kernel_sets(best).items():
            # The cpu kernels have no float64.
            if kernels != "reference" and keys.get("training.dtype") == "float64":
                continue
            out[name][kernels] = outcome(lockstep, {**BASE, **keys, **choice}, processes)
        print(name, *out[name], file=sys.stderr)
    return out


def differences(old, new):
    for name in sorted(old.keys() | new.keys()):
        for kernels in sorted(old.get(name, {}).keys() | new.get(name, {}).keys()):
            a, b = (side.get(name, {}).get(kernels) for side in (old, new))
            if a is None or b is None:
                yield f"{name}, {kernels}: only in the {'new' if a is None else 'old'} record"
                continue
            for what in a:
                if a[what] == b[what]:
                    continue
                at, (before, now) = next((i, pair) for i, pair in enumerate(itertools.zip_longest(a[what], b[what])) if pair[0] != pair[1])
                yield f"{name}, {kernels}: {what} {at + 1}: {before} before, {now} now"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--against", help="another build of lockstep")
    args = parser.parse_args()
    file = pathlib.Path(__file__).with_name("record.json")
    new = record(os.path.abspath(args.lockstep), best=args.against is not None)
    if args.write:
        file.write_text(json.dumps(new, indent=1) + "\n")
        return
    old = record(os.path.abspath(args.against), best=True) if args.against else json.loads(file.read_text())
    found = list(differences(old, new))
    print("\n".join(found) or f"{sum(map(len, new.values()))} runs of {len(new)} recipes: the same bits and bytes")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
