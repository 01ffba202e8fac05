#!/usr/bin/env python3
"""Checks Lockstep on a machine with an NVIDIA GPU, and measures it: at most ten minutes. `scripts/gpu_check.sh` calls it, in the
folder of `make gpu-bundle` or in a checkout that is built.

    gpu_check.py --lockstep BIN --tests BIN [--out FOLDER] [--parts NAME ...] [--seconds N]

Each part writes a line to FOLDER/results.jsonl as soon as it ends, so that a run that is cut off keeps what it found. The last
line of the output is "N passed, N failed, N skipped"; the exit code is 1 where a part failed."""
import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

here = pathlib.Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lockstep", required=True)
parser.add_argument("--tests", required=True, help="lockstep_tests: it has the table of ops")
parser.add_argument("--peer", help="bench/peers/peer.py: PyTorch's step; without it no speed is compared")
parser.add_argument("--libraries", default="", help="LD_LIBRARY_PATH of Lockstep's programs, not of others: these may want newer ones")
parser.add_argument("--out", default="gpu_check")
parser.add_argument("--parts", nargs="+", help="names of the functions below that are in PARTS (default: all)")
parser.add_argument("--tiny", action="store_true", help="tiny models, for trying this script where no GPU is")
parser.add_argument("--seconds", type=float, default=600, help="of all parts; those that no longer fit are left out")
args = parser.parse_args()
out = pathlib.Path(args.out).resolve()
out.mkdir(parents=True, exist_ok=True)
began = time.monotonic()


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


OURS = ["env", f"LD_LIBRARY_PATH={args.libraries}"] if args.libraries else []
lockstep, tests = [*OURS, args.lockstep], [*OURS, args.tests]


def run(command, seconds, **options):
    """Its standard output."""
    command = [str(c) for c in command]
    with open(out / "log.txt", "a", errors="replace") as log:  # what a command says, whole; a failure's message has only its end
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        begin = log.tell()
        try:
            r = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, errors="replace", timeout=seconds, **options)
        except subprocess.TimeoutExpired:
            raise Failed(f"{command[len(OURS)]}: more than {seconds} s") from None
        log.write(r.stdout)
    if r.returncode != 0:
        said = (out / "log.txt").read_bytes()[begin:].decode(errors="replace").strip()
        raise Failed(f"{' '.join(command[len(OURS) : len(OURS) + 3])}: exit code {r.returncode}: {said[-600:]}")
    return r.stdout


# A Llama that fits any GPU, on synthetic tokens.
RECIPE = """
[job]
dump_folder = "out"
[model]
dim = {dim}
n_layers = {layers}
n_heads = {heads}
n_kv_heads = {heads}
ffn_dim = {ffn}
vocab_size = {vocab}
[optimizer]
lr = 3e-4
[training]
dataset = "synthetic"
mixed_precision_param = "{dtype}"
local_batch_size = {batch}
seq_len = {seq}
steps = {steps}
[lr_scheduler]
warmup_steps = 2
[activation_checkpoint]
mode = "none"
[runtime]
kernels = "cuda"
"""
SMALL = dict(dim=256, layers=4, heads=4, ffn=704, vocab=2048, dtype="bfloat16", batch=4, seq=256, steps=20)
GPT2_SIZED = dict(dim=768, layers=12, heads=12, ffn=2048, vocab=50304, batch=16, seq=1024, steps=12)
if args.tiny:
    SMALL = GPT2_SIZED = dict(dim=16, layers=2, heads=4, ffn=32, vocab=64, dtype="bfloat16", batch=1, seq=16, steps=20)


def recipe_in(folder, **shape):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "r.toml").write_text(RECIPE.format(**{**SMALL, **shape}))


def train(folder, keys=(), seconds=120, processes=0, **shape):
    """Its JSON. Ranks are threads of one process, or so many processes."""
    recipe_in(folder, **shape)
    launch = ["launch", "--processes", processes, "--max-restarts", "0", "--grace", "1", "--"] if processes else []
    environment = {**os.environ, "OMPI_MCA_rmaps_base_oversubscribe": "1"}  # more processes than cores
    text = run([*lockstep, *launch, "train", "r.toml", "--json", *keys], seconds, cwd=folder, env=environment)
    return json.loads(text.strip().splitlines()[-1])


def weights(folder):
    files = sorted(pathlib.Path(folder).rglob("*.safetensors"))
    if not files:
        raise Failed(f"{folder}: no checkpoint")
    return [(f.name, hashlib.sha256(f.read_bytes()).hexdigest()) for f in files]


def versions(scratch):
    text = run([*lockstep, "--version"], 60)
    found = {"lockstep": text.strip().splitlines()}
    if shutil.which("nvidia-smi"):
        found["gpu"] = run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], 60).strip()
    if "GPU: none" in text:
        raise Failed(re.search(r"GPU: none: (.*)", text).group(1))
    return found


def op_table(scratch):
    report = scratch / "ops.json"
    try:
        run([*tests, "--gtest_filter=*OpTableDevice*", "--gtest_brief=1", f"--gtest_output=json:{report}"], 120)
    except Failed:
        if not report.exists():
            raise
    result = json.loads(report.read_text())
    if any(t.get("result") == "SKIPPED" for s in result["testsuites"] for t in s["testsuite"]):
        raise Failed("the ops were skipped: LOCKSTEP_GPU_MODULE names no module")
    bad = [t["name"] for s in result["testsuites"] for t in s["testsuite"] if t.get("failures")]
    if bad or result["tests"] == 0:
        raise Failed(f"{len(bad)} of {result['tests']} ops differ from the reference: {', '.join(bad[:20])}")
    return {"ops": result["tests"]}


SAVES = ["--checkpoint.enable", "true", "--checkpoint.interval", "20"]


def twice_the_same(scratch):
    first, second = train(scratch / "first", SAVES), train(scratch / "second", SAVES)
    if first["final_loss"] != second["final_loss"] or weights(scratch / "first") != weights(scratch / "second"):
        raise Failed(f"two runs of twenty steps differ: {first['final_loss']} and {second['final_loss']}")
    return {"loss": first["final_loss"]}


def graph_the_same(scratch):
    calls, graph = train(scratch / "calls", SAVES), train(scratch / "graph", [*SAVES, "--runtime.cuda_graph", "true"])
    if calls["final_loss"] != graph["final_loss"] or weights(scratch / "calls") != weights(scratch / "graph"):
        raise Failed(f"a graph gives other bits: {calls['final_loss']} and {graph['final_loss']}")
    return {"calls_step_s": calls["step_time_s"], "graph_step_s": graph["step_time_s"]}


def beside_the_same(scratch):
    """Checkpoints that are written beside training have the bits of those that training waits for, call by call and as a graph."""
    keys = ["--checkpoint.enable", "true", "--checkpoint.interval", "5", "--checkpoint.last_save_model_only", "false"]
    waits = train(scratch / "waits", keys)
    found = {"waits_stall_s": waits["checkpoint_stall_s"]}
    for name, graph in (("beside", "false"), ("beside_graph", "true")):
        beside = train(scratch / name, [*keys, "--checkpoint.async_mode", "async", "--runtime.cuda_graph", graph])
        if beside["final_loss"] != waits["final_loss"] or weights(scratch / name) != weights(scratch / "waits"):
            raise Failed(f"{name}: {beside['final_loss']}, and {waits['final_loss']} where training waits, or other files")
        found[f"{name}_stall_s"] = beside["checkpoint_stall_s"]
    return found


D = "--parallelism."
LAYOUTS = {
    "fsdp": [D + "data_parallel_shard_degree", "2"],
    "hsdp": [D + "data_parallel_shard_degree", "2", D + "data_parallel_replicate_degree", "2"],
    "zero1": [D + "data_parallel_shard_degree", "4", "--partition.preset", "zero1"],
    "tp": [D + "tensor_parallel_degree", "2"],
    "tp_without_sp": [D + "tensor_parallel_degree", "4", D + "sequence_parallel", "false"],
    "async_tp": [D + "tensor_parallel_degree", "2", D + "enable_async_tensor_parallel", "true"],
    "pp": [D + "pipeline_parallel_degree", "2"],
    "3d": [D + "pipeline_parallel_degree", "2", D + "tensor_parallel_degree", "2", D + "data_parallel_shard_degree", "2"],
}


def layouts(scratch):
    keys = ["--training.global_batch_size", "16"]
    one = train(scratch / "one", keys, dtype="float32", steps=5)["final_loss"]
    losses = {name: train(scratch / name, [*keys, *layout], dtype="float32", steps=5)["final_loss"] for name, layout in LAYOUTS.items()}
    far = {name: loss for name, loss in losses.items() if not abs(loss - one) <= 2e-4 * abs(one)}
    if far:
        raise Failed(f"one rank: {one}; others: {far}")
    return {"one_rank": one, "largest_difference": max(abs(loss - one) for loss in losses.values())}


def nccl(scratch):
    """Ranks that are processes over NCCL have the bits of threads that share a GPU, call by call and as graphs. With NCCL's own
    sums they come near, with the same bits twice."""
    gpus = len(run(["nvidia-smi", "-L"], 30).splitlines()) if shutil.which("nvidia-smi") else 0
    if not shutil.which("mpirun"):
        raise Skipped("there is no mpirun")
    if gpus < 2 and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
        raise Skipped("there is one GPU, and NCCL_MULTI_RANK_GPU_ENABLE = 1 (NCCL 2.31 or later) is not set")
    keys = ["--training.global_batch_size", "16", "--checkpoint.last_save_model_only", "false", *SAVES, "--checkpoint.interval", "5"]
    found = {}
    cases = [("fsdp", 2, "float32"), ("tp", 2, "float32"), ("pp", 2, "float32"), ("hsdp", 4, "float32"), ("fsdp", 2, "bfloat16")]
    for name, processes, dtype in cases:
        here = scratch / f"{name}_{dtype}"
        one = train(here / "threads", [*keys, *LAYOUTS[name]], dtype=dtype, steps=5)
        for graph in ("false", "true"):
            several = train(here / graph, [*keys, *LAYOUTS[name], "--runtime.cuda_graph", graph], 90, processes, dtype=dtype, steps=5)
            if several["final_loss"] != one["final_loss"] or weights(here / graph) != weights(here / "threads"):
                raise Failed(f"{name}, graph {graph}: {several['final_loss']} over NCCL, {one['final_loss']} as threads")
        found[here.name] = one["final_loss"]
    here = scratch / "library"
    own = [*keys, *LAYOUTS["fsdp"], "--comm.reductions", "nccl"]
    first, again = (train(here / time, own, 90, 2, dtype="float32", steps=5) for time in ("first", "again"))
    exact = found["fsdp_float32"]
    if weights(here / "first") != weights(here / "again") or abs(first["final_loss"] - exact) > 1e-4:
        raise Failed(f"sums by NCCL: {first['final_loss']} and {again['final_loss']}, in the order of ranks {exact}")
    found["fsdp by NCCL"] = first["final_loss"]
    return {"gpus": gpus, **found}


def commands(scratch):
    """A run that goes on from a checkpoint ends as one that was never stopped; the GPU evaluates and continues texts as the host does."""
    keys = ["--checkpoint.enable", "true", "--checkpoint.interval", "10", "--checkpoint.last_save_model_only", "false"]
    whole = train(scratch / "run", keys)
    last = scratch / "run" / "out" / "checkpoint" / "step-00000020"
    before = weights(last)
    rest = train(scratch / "run", [*keys, "--checkpoint.load_step", "10"])
    if rest["final_loss"] != whole["final_loss"] or weights(last) != before:
        raise Failed(f"a run that was stopped ends with {rest['final_loss']}, one that was not with {whole['final_loss']}")
    found = {"loss": whole["final_loss"], "checkpoint_stall_s": whole["checkpoint_stall_s"]}

    text = scratch / "text"
    text.mkdir()
    for i in range(8):
        (text / f"{i}.txt").write_text(f"all work and no play makes jack a dull boy, {i} times. " * 40)
    run([*lockstep, "data", "prepare", *sorted(text.glob("*.txt")), "--out", text / "d", "--tokenizer", "bytes", "--heldout", "0.3"], 60)
    recipe = RECIPE.format(**{**SMALL, "seq": 128, "dtype": "float32"}).replace(f"vocab_size = {SMALL['vocab']}\n", "")
    (text / "r.toml").write_text(recipe.replace('dataset = "synthetic"', f'dataset_path = "{text / "d"}"'))
    run([*lockstep, "train", "r.toml", "--checkpoint.enable", "true"], 120, cwd=text)
    losses, texts = [], []
    for kernels in ("cuda", "cpu"):
        losses.append(json.loads(run([*lockstep, "eval", "out", "--runtime.kernels", kernels, "--json"], 60, cwd=text))["loss"])
        sample = ["sample", "out", "--prompt", "all work", "--max-tokens", "16", "--temperature", "0"]
        texts.append(run([*lockstep, *sample, "--runtime.kernels", kernels], 60, cwd=text))
    if abs(losses[0] - losses[1]) > 1e-3 or texts[0] != texts[1]:
        raise Failed(f"evaluated: {losses}; continued: {texts}")
    return {**found, "heldout_loss": losses[0], "text": texts[0].strip()[:80]}


def sanitizer(scratch):
    tool = shutil.which("compute-sanitizer")
    if not tool:
        raise Skipped("there is no compute-sanitizer")
    memcheck = [tool, "--tool", "memcheck", "--error-exitcode", "9", "--target-processes", "all"]
    run([*memcheck, *tests, "--gtest_filter=*OpTableDevice*", "--gtest_brief=1"], 120)
    return {}


def memory(scratch):
    if not shutil.which("nvidia-smi"):
        raise Skipped("there is no nvidia-smi")
    folder = scratch / "memory"
    recipe_in(folder, **GPT2_SIZED)
    planned = json.loads(run([*lockstep, "check", "r.toml", "--json"], 60, cwd=folder))
    process = subprocess.Popen([*lockstep, "train", "r.toml", "--json"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    used = 0
    while process.poll() is None:
        text = run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"], 30)
        for line in text.splitlines():
            pid, mib = [int(re.sub(r"\D", "", f) or 0) for f in line.split(",")]
            used = max(used, mib << 20) if pid == process.pid else used
        time.sleep(0.2)
    if process.returncode != 0 or used == 0:
        raise Failed(f"exit code {process.returncode}, {used} bytes seen")
    arena = planned["stages"][0]["bytes"]["total"]
    if not 0 <= used - arena <= 2 << 30:
        raise Failed(f"planned {arena} bytes, used {used}")
    return {"planned_bytes": arena, "used_bytes": used, "beside_the_arena": used - arena}


def bench(scratch):
    run([*lockstep, "bench", "--kernels", "cuda", "--out", out / "gpu.toml", *(["--quick"] if args.tiny else ["--seconds", "30"])], 150)
    found = {}
    for name, shape in (("small", SMALL), ("gpt2_sized", GPT2_SIZED)):
        measured = sorted(train(scratch / name, **shape)["step_time_s"] for _ in range(3))[1]
        plan = run([*lockstep, "plan", "r.toml", "--cluster", out / "gpu.toml", "--json"], 60, cwd=scratch / name)
        found[name] = {"planned_s": json.loads(plan)["step_time_s"], "measured_s": measured}
    far = {name: f for name, f in found.items() if not abs(f["planned_s"] / f["measured_s"] - 1) <= 0.1}
    if far and not args.tiny:
        raise Failed(f"a plan is more than 10 % from what was measured: {json.dumps(found)}")
    return found


def kernels(scratch):
    """Row kernels beside copies of the GPU; products and attention beside PyTorch's."""
    import tomllib

    cluster = tomllib.loads((out / "gpu.toml").read_text())
    copied = cluster["rates"]["bytes_per_s"][0]
    rows = [r for r in cluster["kernels"] if r["dtype"] == "bf16"]
    by_library = ("einsum", "addmm", "attention", "attention_backward")
    library = [r for r in rows if r["op"] in by_library and not r["kernel"].startswith("gpu.einsum")]
    found = {"copy_bytes_per_s": copied}
    large = [r for r in rows if r not in library and r["bytes"] > 2e8]
    least = lambda op: min(r["bytes"] / r["cold_s"] / copied for r in large if r["op"] == op)
    found["share_of_copies"] = {op: round(least(op), 3) for op in sorted({r["op"] for r in large})}
    if not args.peer:
        raise Skipped(json.dumps(found))
    asked = []
    for kind in ("product", "attention", "attention_backward"):
        of_kind = [r for r in library if r["op"] == kind or (kind == "product" and r["variant"])]
        of_kind = [r for r in of_kind if r["flops"] < 3e12]
        asked += [(kind, r) for r in sorted(of_kind, key=lambda r: -r["flops"])[: 12 if kind == "product" else 4]]
    entries = [{"kind": kind, "sizes": r["sizes"], "variant": r["variant"]} for kind, r in asked]
    peer = pathlib.Path(args.peer).with_name("gpu_kernels.py")
    theirs = json.loads(run([sys.executable, peer], 120, input=json.dumps(entries)))
    found["beside_torch"] = [
        {"kernel": r["kernel"], "sizes": r["sizes"], "ours_s": r["warm_s"], "torch_s": round(t, 9), "ratio": round(t / r["warm_s"], 3)}
        for (_, r), t in zip(asked, theirs)
    ]
    return found


def trace(scratch):
    train(scratch / "trace", ["--trace", str(out / "trace.json")], **GPT2_SIZED)
    return {"file": "trace.json"}


def step(scratch):
    results = {}
    for graph in ("false", "true"):
        times = [train(scratch / f"speed_{graph}", ["--runtime.cuda_graph", graph], **GPT2_SIZED)["step_time_s"] for _ in range(3)]
        results[f"lockstep_graph_{graph}_s"] = sorted(times)
    if not args.peer:
        raise Skipped(json.dumps(results))
    for kind in ([], ["--compile"]):
        shape = ["--layers", "12", "--width", "768", "--heads", "12", "--ffn", "2048", "--vocab", "50304", "--batch", "16", "--seq", "1024"]
        text = run([sys.executable, args.peer, "--device", "cuda", "--dtype", "bfloat16", *kind, *shape], 180)
        results["torch_compiled_s" if kind else "torch_eager_s"] = json.loads(text.strip().splitlines()[-1])["step_time_s"]
    return results


PARTS = [versions, op_table, twice_the_same, graph_the_same, beside_the_same, commands, nccl, layouts, memory,
         trace, bench, kernels, step, sanitizer]
counts = {"passed": 0, "failed": 0, "skipped": 0}
for part in PARTS:
    name = part.__name__
    if args.parts and name not in args.parts:
        continue
    start, line = time.monotonic(), {"part": name}
    try:
        if start - began > args.seconds - 20:
            raise Skipped("no time is left")
        with tempfile.TemporaryDirectory() as scratch:
            line.update(result="passed", found=part(pathlib.Path(scratch)))
    except Skipped as e:
        line.update(result="skipped", why=str(e))
    except Failed as e:
        line.update(result="failed", why=str(e))
    except Exception as e:  # a part that breaks must not keep the others from running
        line.update(result="failed", why=f"{type(e).__name__}: {e}")
    line["seconds"] = round(time.monotonic() - start, 1)
    counts[line["result"]] += 1
    with open(out / "results.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"{name:16} {line['result']:8} {line['seconds']:6} s  {line.get('why') or json.dumps(line.get('found'))}", flush=True)
print(", ".join(f"{n} {what}" for what, n in counts.items()))
sys.exit(1 if counts["failed"] else 0)
