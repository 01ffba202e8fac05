#!/usr/bin/env python3
"""How the step's time grows with sequence, layers, vocabulary, microbatches and ranks, beside the floor (bench/floor.py).

    growth.py LOCKSTEP [--only sequence layers vocabulary microbatches ranks]

Where cost grows as it should, the step stays at the same share of the floor, or comes nearer as fixed costs weigh less. Roofs are
measured before each series. Exit code 1 where the share falls below 75 % of the best at a smaller value.
"""
import argparse
import dataclasses
import sys
import tempfile

from floor import Shape, floor_s, last_json, roofs


@dataclasses.dataclass
class Point:
    value: int
    shape: Shape
    seq: int
    batch: int  # sequences of a rank's microbatch
    microbatches: int = 1
    ranks: int = 1
    threads: int = 2  # of a rank


BASE = Shape(4, 256, 704, 4096)
SERIES = {
    # The same 8,192 tokens a step, in sequences of growing length.
    "sequence": [Point(t, dataclasses.replace(BASE, layers=2), t, 8192 // t) for t in (256, 512, 1024, 2048, 4096, 8192)],
    "layers": [Point(n, dataclasses.replace(BASE, layers=n), 256, 4) for n in (2, 4, 8, 16, 32)],
    "vocabulary": [Point(v, dataclasses.replace(BASE, vocab=v), 256, 4) for v in (4096, 8192, 16384, 32768, 65536)],
    "microbatches": [Point(m, BASE, 256, 4, microbatches=m) for m in (1, 2, 4, 8, 16)],
    # Data ranks (FSDP) of a thread each, 1,024 tokens each: the floor doubles where ranks outnumber two cores.
    "ranks": [Point(r, BASE, 256, 4, ranks=r, threads=1) for r in (1, 2, 4, 8)],
}


def step_s(lockstep, p, folder):
    s = p.shape
    keys = {"model.dim": s.d, "model.n_layers": s.layers, "model.n_heads": s.d // 64, "model.n_kv_heads": s.d // 64, "model.ffn_dim": s.f,
            "model.vocab_size": s.vocab, "training.dataset": "synthetic", "training.seq_len": p.seq, "training.local_batch_size": p.batch,
            "training.global_batch_size": p.batch * p.microbatches * p.ranks, "training.steps": 7, "lr_scheduler.warmup_steps": 0,
            "training.mixed_precision_param": "float32", "activation_checkpoint.mode": "none", "parallelism.data_parallel_shard_degree": p.ranks, "runtime.threads_per_rank": p.threads, "metrics.log_freq": 100,
            "job.dump_folder": folder}
    recipe = f"{folder}/recipe.toml"
    open(recipe, "w").close()
    return last_json([lockstep, "train", recipe, "--json"] + [x for k, v in keys.items() for x in (f"--{k}", str(v))])["step_time_s"]


def series(lockstep, name, folder):
    flops, bytes_per_s = roofs(lockstep)
    print(f"\n{name:<14}{'step ms':>10}{'floor ms':>10}{'of floor':>10}   roofs {flops[1] / 1e9:.0f} GFLOP/s, {bytes_per_s[1] / 1e9:.1f} GB/s")
    good, best = True, 0
    for p in SERIES[name]:
        threads = min(p.ranks * p.threads, len(flops))
        tokens = p.seq * p.batch * p.microbatches * p.ranks
        floor = floor_s(p.shape, tokens, p.seq, flops[threads - 1], bytes_per_s[threads - 1], p.microbatches)
        step = step_s(lockstep, p, folder)
        share = floor / step
        good &= share >= 0.75 * best
        print(f"{p.value:<14}{1e3 * step:>10.1f}{1e3 * floor:>10.1f}{100 * share:>8.0f} %{'' if share >= 0.75 * best else '  FALLS'}", flush=True)
        best = max(best, share)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--only", nargs="+", choices=list(SERIES), default=list(SERIES))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        good = [series(args.lockstep, name, folder) for name in args.only]
    sys.exit(0 if all(good) else 1)


main()
