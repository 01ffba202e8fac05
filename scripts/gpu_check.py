#!/usr/bin/env python3
"""Checks Lockstep on a machine with an NVIDIA GPU, and measures it, in two runs of at most seven minutes each. `scripts/gpu_check.sh`
calls it, in the folder of `make gpu-bundle` or in a checkout that is built.

    gpu_check.py right|fast --lockstep BIN --tests BIN --clusters FOLDER --kernels docs/gpu.md [--out FOLDER] [--only WORD ...] [--seconds N]

right: are results right? What no GPU has run comes first. fast: how long are steps, with and without what shall make them faster,
and in PyTorch?
Each check writes a line to FOLDER/results.jsonl as soon as it ends, so that a run that is cut off keeps what it found. At the end a
table says of each check: passed, failed, skipped (with the reason) or not reached. The exit code is 1 where a check failed."""
import argparse
import collections
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("run", choices=["right", "fast"])
parser.add_argument("--lockstep", required=True)
parser.add_argument("--tests", required=True, help="lockstep_tests: it has the table of ops")
parser.add_argument("--clusters", required=True, help="the folder clusters/")
parser.add_argument("--kernels", required=True, help="docs/gpu.md: which kernels a GPU has run")
parser.add_argument("--peer", help="bench/peers/peer.py: PyTorch's step; without it no speed is compared")
parser.add_argument("--libraries", default="", help="LD_LIBRARY_PATH of Lockstep's programs, not of others: these may want newer ones")
parser.add_argument("--out", default="gpu_check")
parser.add_argument("--only", nargs="+", help="checks whose names contain one of these words (default: all)")
parser.add_argument("--tiny", action="store_true", help="tiny models, for trying this script where no GPU is")
parser.add_argument("--seconds", type=float, default=420, help="of the run, by its own clock; what no longer fits is not reached")
args = parser.parse_args()
out = pathlib.Path(args.out).resolve()
out.mkdir(parents=True, exist_ok=True)
ends = time.monotonic() + args.seconds
kept = tempfile.TemporaryDirectory()  # of runs that several checks look at


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


class NotReached(Exception):
    pass


OURS = ["env", f"LD_LIBRARY_PATH={args.libraries}"] if args.libraries else []
lockstep, tests = ([*OURS, str(pathlib.Path(program).resolve())] for program in (args.lockstep, args.tests))


def run(command, seconds, **options):
    """Its standard output."""
    command = [str(c) for c in command]
    left = ends - time.monotonic()
    if left < 1:
        raise NotReached("no time was left")
    with open(out / "log.txt", "a", errors="replace") as log:  # what a command says, whole; a failure's message has only its end
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        begin = log.tell()
        try:
            r = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, errors="replace", timeout=min(seconds, left), **options)
        except subprocess.TimeoutExpired:
            if left < seconds:
                raise NotReached("the end of the run cut it off") from None
            raise Failed(f"{command[len(OURS)]}: more than {seconds} s") from None
        log.write(r.stdout)
    if r.returncode != 0:
        said = (out / "log.txt").read_bytes()[begin:].decode(errors="replace").strip()
        if "check.does_not_fit" in said:
            raise Skipped("the GPU has too little memory")
        raise Failed(f"{' '.join(command[len(OURS) : len(OURS) + 3])}: exit code {r.returncode}: {said[-600:]}")
    return r.stdout


# ---- Models, on synthetic tokens.

RECIPE = """
[job]
dump_folder = "out"
[model]
name = "{model}"
dim = {dim}
n_layers = {layers}
n_heads = {heads}
{kv_heads}ffn_dim = {ffn}
vocab_size = {vocab}
[optimizer]
lr = 3e-4
[training]
dataset = "synthetic"
document_mask = {document_mask}
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
USUAL = dict(model="llama3", kv_heads=None, dtype="bfloat16", document_mask="false", steps=20)
SMALL = dict(dim=256, layers=4, heads=4, kv_heads=4, ffn=704, vocab=2048, batch=4, seq=256)
SMALL_GPT2 = {**SMALL, "model": "gpt2", "ffn": 1024}
IN_BLOCKS = {**SMALL, "heads": 2, "kv_heads": 2, "ffn": 768, "steps": 5}  # sizes are multiples of 128
LONG = {**SMALL, "layers": 1, "batch": 2, "seq": 16384, "steps": 3}  # a backward of cuDNN in parts, of sequences and of heads
LONGER = {**LONG, "kv_heads": 1, "batch": 1, "seq": 32768}  # a block of two context ranks in parts, of queries
TIMED = {
    "162M": dict(dim=768, layers=12, heads=12, ffn=2048, vocab=50304, batch=16, seq=1024, steps=12),
    "542M": dict(dim=2048, layers=8, heads=16, ffn=5632, vocab=32000, batch=8, seq=2048, steps=12),
    "1.5B 4 layers": dict(dim=1536, layers=4, heads=12, kv_heads=2, ffn=8960, vocab=151936, batch=16, seq=1024, steps=8),
    "8B 2 layers": dict(dim=4096, layers=2, heads=32, kv_heads=8, ffn=14336, vocab=128256, batch=2, seq=8192, steps=6),
}
if args.tiny:
    TINY = dict(dim=16, layers=2, heads=4, kv_heads=4, ffn=32, vocab=64, batch=1, seq=16)
    SMALL, SMALL_GPT2, LONG, LONGER = TINY, {**TINY, "model": "gpt2"}, {**TINY, "steps": 3}, {**TINY, "steps": 3}
    IN_BLOCKS = {**TINY, "dim": 128, "layers": 1, "heads": 1, "kv_heads": 1, "ffn": 128, "seq": 128, "steps": 2}
    TIMED = {name: {**TINY, "steps": 4} for name in TIMED}


def recipe_in(folder, **shape):
    folder.mkdir(parents=True, exist_ok=True)
    s = {**USUAL, **shape}
    s["kv_heads"] = f"n_kv_heads = {s['kv_heads'] or s['heads']}\n" if s["model"] == "llama3" else ""
    (folder / "r.toml").write_text(RECIPE.format(**s))


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


# ---- right

def versions(scratch):
    text = run([*lockstep, "--version"], 60)
    found = {"lockstep": text.strip().splitlines()}
    if shutil.which("nvidia-smi"):
        found["gpu"] = run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader"], 60).strip()
        run(["nvidia-smi", "-q", "-d", "CLOCK,POWER"], 60)  # into the log
    if "GPU: none" in text:
        raise Failed(re.search(r"GPU: none: (.*)", text).group(1))
    return found


# Each op's state in docs/gpu.md, "Which kernels ran": the worst of its kernels'.
STATES = {}
for kernel, served, state in re.findall(r"^\| `(\w+\.\w+)` \| (.*) \| (ran|rewritten|never) \|$", pathlib.Path(args.kernels).read_text(), flags=re.M):
    for op in re.findall(r"`(\w+)`", served):
        STATES[op] = max(STATES.get(op, "ran"), state, key=["ran", "rewritten", "never"].index)
NEW_OPS = [op for state in ("never", "rewritten") for op in STATES if STATES[op] == state]


@functools.cache
def cases_by_op():
    """Cases of the table of ops, by the op of NEW_OPS whose name begins theirs; None: of all others."""
    listed = run([*tests, "--gtest_list_tests", "--gtest_filter=*OpTableDevice*"], 60)
    by_op = collections.defaultdict(list)
    for case in [line.split()[0] for line in listed.splitlines() if line.startswith(" ")]:
        name = case.rpartition("/")[2]
        op = max((op for op in STATES if name.startswith(f"{op}_")), key=len, default=None)
        by_op[op if op in NEW_OPS else None].append(case)
    return by_op


def ops(scratch, op):
    """The table's cases of an op, compared with the reference, each twice."""
    cases = cases_by_op()[op]
    if args.tiny and op is None:
        cases = cases[::20]
    if not cases:
        raise Skipped("the table of ops has no case of it")
    report = scratch / "ops.json"
    try:
        run([*tests, f"--gtest_filter={':'.join('*' + c for c in cases)}", "--gtest_brief=1", f"--gtest_output=json:{report}"], 120)
    except Failed:
        if not report.exists():
            raise
    result = json.loads(report.read_text())
    if any(t.get("result") == "SKIPPED" for s in result["testsuites"] for t in s["testsuite"]):
        raise Failed("the ops were skipped: LOCKSTEP_GPU_MODULE names no module")
    bad = [t["name"] for s in result["testsuites"] for t in s["testsuite"] if t.get("failures")]
    if bad or result["tests"] == 0:
        raise Failed(f"{len(bad)} of {result['tests']} cases differ from the reference: {', '.join(bad[:20])}")
    return {"cases": result["tests"]}


def attention_in_parts(scratch):
    """cuDNN's backward in parts has equal bits twice, and is near our own kernel, which documents' masks ask for."""
    first, again = (train(scratch / name, SAVES, **LONG) for name in ("first", "again"))
    if weights(scratch / "first") != weights(scratch / "again"):
        raise Failed(f"two runs differ: {first['final_loss']} and {again['final_loss']}")
    own = train(scratch / "own", **{**LONG, "document_mask": "true"})
    if abs(first["final_loss"] - own["final_loss"]) > 5e-3 * abs(own["final_loss"]):
        raise Failed(f"by cuDNN {first['final_loss']}, by our own kernel {own['final_loss']}")
    return {"cudnn": first["final_loss"], "own": own["final_loss"]}


def context_attention(scratch):
    """Attention over context ranks, rank after rank, is that of whole sequences: by cuDNN and by our own kernels."""
    report = scratch / "cases.json"
    run([*tests, "--gtest_filter=*ContextAttentionDevice*", "--gtest_brief=1", f"--gtest_output=json:{report}"], 120)
    cases = [t for s in json.loads(report.read_text())["testsuites"] for t in s["testsuite"]]
    skipped = [t["name"] for t in cases if t.get("result") == "SKIPPED"]
    if not cases or len(skipped) == len(cases):
        raise Failed("all cases were skipped: LOCKSTEP_GPU_MODULE names no module")
    return {"cases": len(cases) - len(skipped), "skipped": skipped}


C = "--parallelism.context_parallel_"
CONTEXT = {
    "gather": [C + "degree", "2", C + "rotate_method", "allgather"],
    "ring": [C + "degree", "2", C + "rotate_method", "alltoall"],
    "ring, plain order": [C + "degree", "2", C + "rotate_method", "alltoall", C + "load_balancer", "none"],
    "heads": [C + "degree", "2", C + "rotate_method", "ulysses"],
    "heads, ring": [C + "degree", "4", C + "rotate_method", "alltoall", C + "head_degree", "2"],
}
CONTEXT_SHAPES = {"small": {**SMALL, "steps": 5}, "longer": {**LONGER, "steps": 5}}


MASKS = {"cudnn": "false", "own": "true"}  # whether there are documents' masks, which ask for our own kernels


@functools.cache
def one_rank(shape, kernels):
    folder = pathlib.Path(kept.name) / f"one {shape} {kernels}"
    return train(folder, **{**CONTEXT_SHAPES[shape], "document_mask": MASKS[kernels]})["final_loss"]


def over_context_ranks(scratch, form, shape, also_own=False):
    """Ranks that share the GPU train as one rank does, by cuDNN; or also by our own kernels, and by cuDNN with equal bits twice."""
    found = {}
    for kernels in ["cudnn", "own"] if also_own else ["cudnn"]:
        s = {**CONTEXT_SHAPES[shape], "document_mask": MASKS[kernels]}
        one, own = one_rank(shape, kernels), train(scratch / kernels, [*SAVES, *CONTEXT[form]], **s)["final_loss"]
        if not abs(own - one) <= 5e-3 * abs(one):
            raise Failed(f"{kernels}: one rank {one}, {form} {own}")
        found[kernels] = {"one_rank": one, "loss": own}
    if also_own:
        again = train(scratch / "again", [*SAVES, *CONTEXT[form]], **CONTEXT_SHAPES[shape])["final_loss"]
        if weights(scratch / "again") != weights(scratch / "cudnn"):
            raise Failed(f"two runs differ: {found['cudnn']['loss']} and {again}")
    return found


SAVES = ["--checkpoint.enable", "true", "--checkpoint.interval", "5", "--checkpoint.last_save_model_only", "false"]
MODELS = {"llama": SMALL, "gpt2": SMALL_GPT2}


@functools.cache
def reference(model):
    """Twenty steps, call by call, with checkpoints that training waits for: its JSON and its files."""
    folder = pathlib.Path(kept.name) / model
    return train(folder, SAVES, **MODELS[model]), weights(folder)


def equal_bits(scratch, model, keys=()):
    own = train(scratch / "again", [*SAVES, *keys], **MODELS[model])
    expected, files = reference(model)
    if own["final_loss"] != expected["final_loss"] or weights(scratch / "again") != files:
        raise Failed(f"{own['final_loss']}, and {expected['final_loss']} in the first run, or other files")
    return {"loss": own["final_loss"], "step_s": own["step_time_s"], "first_step_s": expected["step_time_s"],
            "stall_s": own["checkpoint_stall_s"], "first_stall_s": expected["checkpoint_stall_s"]}


FLOAT8 = ["--model.converters", "quantize.linear.float8"]
# Where cuBLASLt has no product of a recipe on this GPU, its parts run in either case.
FLOAT8_RECIPES = {name: [*FLOAT8, "--quantize.linear.float8.recipe_name", name] for name in ("rowwise", "rowwise_with_gw_hp", "blockwise")}
FLOAT8_RECIPES["mx"] = ["--model.converters", "quantize.linear.mx"]


def in_float8(scratch, keys, shape):
    """Products of float8 have equal bits twice, and are near their parts."""
    first, again = (train(scratch / name, [*SAVES, *keys], **shape) for name in ("first", "again"))
    if weights(scratch / "first") != weights(scratch / "again"):
        raise Failed(f"two runs differ: {first['final_loss']} and {again['final_loss']}")
    parts = train(scratch / "parts", [*keys, "--runtime.disabled_kernels", "scaled_einsum"], **shape)
    if abs(first["final_loss"] - parts["final_loss"]) > 5e-3 * abs(parts["final_loss"]):
        raise Failed(f"whole {first['final_loss']}, in parts {parts['final_loss']}")
    return {"whole": first["final_loss"], "parts": parts["final_loss"]}


EPILOGUES = ["--runtime.disabled_kernels", "linear,linear_gelu,matmul_dgelu"]


def without_epilogues(scratch):
    own, with_them = train(scratch / "own", EPILOGUES, **SMALL_GPT2), reference("gpt2")[0]
    if abs(own["final_loss"] - with_them["final_loss"]) > 5e-3 * abs(own["final_loss"]):
        raise Failed(f"with epilogues {with_them['final_loss']}, without {own['final_loss']}")
    return {"with": with_them["final_loss"], "without": own["final_loss"]}


D = "--parallelism."
LAYOUTS = {
    "fsdp": (2, [D + "data_parallel_shard_degree", "2"]),
    "tp": (2, [D + "tensor_parallel_degree", "2"]),
    "pp": (2, [D + "pipeline_parallel_degree", "2"]),
    "3d": (8, [D + "pipeline_parallel_degree", "2", D + "tensor_parallel_degree", "2", D + "data_parallel_shard_degree", "2"]),
    "async_tp_4": (4, [D + "tensor_parallel_degree", "4", D + "enable_async_tensor_parallel", "true"]),
    "async_tp": (2, [D + "tensor_parallel_degree", "2", D + "enable_async_tensor_parallel", "true"]),
}
LAYOUT_KEYS = ["--training.global_batch_size", "16", *SAVES]
IN_FLOAT32 = {**SMALL, "dtype": "float32", "steps": 5}


@functools.cache
def threads(layout):
    """Five steps of a layout whose ranks share the GPU."""
    folder = pathlib.Path(kept.name) / layout
    return train(folder, [*LAYOUT_KEYS, *LAYOUTS.get(layout, (1, []))[1]], **IN_FLOAT32)["final_loss"], weights(folder)


def on_one_gpu(scratch, layout):
    one, own = threads("one")[0], threads(layout)[0]
    if not abs(own - one) <= 2e-4 * abs(one):
        raise Failed(f"one rank: {one}; {layout}: {own}")
    return {"one_rank": one, "loss": own}


def require_processes():
    gpus = len(run(["nvidia-smi", "-L"], 30).splitlines()) if shutil.which("nvidia-smi") else 0
    if not shutil.which("mpirun"):
        raise Skipped("there is no mpirun")
    if gpus < 2 and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
        raise Skipped("there is one GPU, and NCCL_MULTI_RANK_GPU_ENABLE = 1 (NCCL 2.31 or later) is not set")


def over_processes(scratch, layout, transport):
    """Ranks that are processes have the bits of threads that share a GPU, call by call and as graphs. "3d" has queues for weights,
    activations and transfers between pipeline ranks, all at once."""
    processes, keys = LAYOUTS[layout]
    expected, files = threads(layout)
    times = {}
    for graph in ("false", "true"):
        keys_of_run = [*LAYOUT_KEYS, *keys, "--runtime.cuda_graph", graph, "--comm.transport", transport]
        own = train(scratch / graph, keys_of_run, 90, processes, **IN_FLOAT32)
        if own["final_loss"] != expected or weights(scratch / graph) != files:
            raise Failed(f"graph {graph}: {own['final_loss']} by processes, {expected} as threads")
        times[f"step_s_graph_{graph}"] = own["step_time_s"]
    return {"processes": processes, "loss": expected, **times}


def over_nccl(scratch, layout):
    require_processes()
    return over_processes(scratch, layout, "nccl")


def by_peers(scratch, layout):
    """Processes that write to the memory of each other's GPU, which may be the same one."""
    if not shutil.which("mpirun") or not shutil.which("nvidia-smi"):
        raise Skipped("there is no mpirun, or no nvidia-smi: no GPU that processes could share")
    return over_processes(scratch, layout, "auto")


def sums_by_nccl(scratch):
    """NCCL's own sums come near the sums in the order of ranks, with the same bits twice."""
    require_processes()
    processes, keys = LAYOUTS["fsdp"]
    own = [*LAYOUT_KEYS, *keys, "--comm.reductions", "nccl"]
    first, again = (train(scratch / name, own, 90, processes, **IN_FLOAT32)["final_loss"] for name in ("first", "again"))
    exact = threads("fsdp")[0]
    if weights(scratch / "first") != weights(scratch / "again") or abs(first - exact) > 1e-4:
        raise Failed(f"{first} and {again}, in the order of ranks {exact}")
    return {"loss": first, "in_the_order_of_ranks": exact}


def cluster_file():
    """Of a GPU with the same programs; its rates do not matter here."""
    text = run([*lockstep, "--version"], 60)
    capability = int((re.search(r"\(sm_(\d+)", text) or [0, 90])[1])
    name = "rtx5090" if capability >= 120 else "b200" if capability >= 100 else "h100" if capability >= 90 else "rtx4090" if capability >= 89 else "a100_80gb_1nic"
    return pathlib.Path(args.clusters).resolve() / f"{name}.toml"


def traced(scratch, model, keys=(), name=""):
    """Each kernel in the step of a model: ms, and by the program's bytes and FLOPs TB/s and TFLOP/s. Into OUT/trace_MODEL.txt."""
    file = out / f"trace_{model.replace(' ', '_')}{name}.json"
    measured = train(scratch, [*keys, "--trace", str(file)], **TIMED[model])
    plan = [*lockstep, "plan", "r.toml", *keys, "--json", "--cluster", cluster_file(), "--costliest", "100000"]
    planned = json.loads(run(plan, 60, cwd=scratch))
    costs = {}
    for op in planned["stages"][0]["costliest"]:
        costs[op["op"]] = [op["time_s"] * op["flops_per_s"] / op["count"], op["time_s"] * op["bytes_per_s"] / op["count"]]
    sums = collections.defaultdict(lambda: [0, 0.0, 0.0, 0.0])  # count, us, FLOPs, bytes
    unknown_us, routine = 0.0, {}
    for e in sorted(json.loads(file.read_text())["traceEvents"], key=lambda e: (e.get("ts", 0), -e.get("dur", 0))):
        if e["ph"] != "X" or e["cat"] == "data":
            continue
        if e["cat"] != "op":
            routine[e["tid"]] = e["name"]
            continue
        cost = costs.get(f"{routine.get(e['tid'])} {e['args']['result']} ({e['name']})")
        if cost is None:
            unknown_us += e["dur"]
            continue
        s = sums[f"{e['name']} ({e['args']['kernel']})"]
        s[0], s[1], s[2], s[3] = s[0] + 1, s[1] + e["dur"], s[2] + cost[0], s[3] + cost[1]
    if unknown_us > 0.05 * (unknown_us + sum(s[1] for s in sums.values())):
        raise Failed(f"{unknown_us / 1e3:.3f} ms of the trace are in ops that the planned program has not")
    rows = sorted(sums.items(), key=lambda item: -item[1][1])
    table = [f"{'op (kernel)':52}{'calls':>6}{'ms':>10}{'TFLOP/s':>10}{'TB/s':>8}"]
    table += [f"{name:52}{s[0]:6}{s[1] / 1e3:10.3f}{s[2] / s[1] / 1e6:10.1f}{s[3] / s[1] / 1e6:8.2f}" for name, s in rows if s[1] > 0]
    file.with_suffix(".txt").write_text("\n".join(table) + "\n")
    print("\n".join(table[:16]), flush=True)
    return {"step_s": measured["step_time_s"], "ops_ms": round(sum(s[1] for s in sums.values()) / 1e3, 3), "unknown_ms": round(unknown_us / 1e3, 3),
            "file": file.with_suffix(".txt").name}


def sanitized(scratch, tool_name, cases):
    tool = shutil.which("compute-sanitizer")
    if not tool:
        raise Skipped("there is no compute-sanitizer")
    options = ["--tool", tool_name, "--error-exitcode", "9", "--target-processes", "all"]
    run([tool, *options, *tests, f"--gtest_filter={':'.join('*' + c for c in cases())}", "--gtest_brief=1"], 120)
    return {"cases": len(cases())}


def cases_of_new_ops():
    return [c for op in NEW_OPS for c in cases_by_op()[op]]


def cases_of_norms():
    return [c for all_of in cases_by_op().values() for c in all_of if "norm" in c and "unary" not in c]


def resumed(scratch):
    """A run that goes on from a checkpoint ends as one that was never stopped; the GPU evaluates and continues texts as the host does."""
    keys = ["--checkpoint.enable", "true", "--checkpoint.interval", "10", "--checkpoint.last_save_model_only", "false"]
    whole = train(scratch / "run", keys, **SMALL)
    last = scratch / "run" / "out" / "checkpoint" / "step-00000020"
    before = weights(last)
    rest = train(scratch / "run", [*keys, "--checkpoint.load_step", "10"], **SMALL)
    if rest["final_loss"] != whole["final_loss"] or weights(last) != before:
        raise Failed(f"a run that was stopped ends with {rest['final_loss']}, one that was not with {whole['final_loss']}")
    found = {"loss": whole["final_loss"]}

    text = scratch / "text"
    text.mkdir()
    for i in range(8):
        (text / f"{i}.txt").write_text(f"all work and no play makes jack a dull boy, {i} times. " * 40)
    run([*lockstep, "data", "prepare", *sorted(text.glob("*.txt")), "--out", text / "d", "--tokenizer", "bytes", "--heldout", "0.3"], 60)
    recipe_in(text, **{**SMALL, "seq": 128, "dtype": "float32"})
    recipe = (text / "r.toml").read_text().replace(f"vocab_size = {SMALL['vocab']}\n", "")
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


def memory(scratch):
    if not shutil.which("nvidia-smi"):
        raise Skipped("there is no nvidia-smi")
    recipe_in(scratch, **TIMED["162M"])
    planned = json.loads(run([*lockstep, "check", "r.toml", "--json"], 60, cwd=scratch))
    process = subprocess.Popen([*lockstep, "train", "r.toml", "--json"], cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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


# ---- fast

DISABLED = "--runtime.disabled_kernels"
# What shall make a step faster: keys with it, and without. A new one is a row here.
PAIRS = {
    "graph": (["--runtime.cuda_graph", "true"], ["--runtime.cuda_graph", "false"]),
    "packed queries, keys, values": ([], ["--training.pack_products", "false"]),
    "cross_entropy_gradient": ([], [DISABLED, "cross_entropy_gradient"]),
    "residual added in a product": ([], [DISABLED, "addmm"]),
    "rmsnorm_backward_add": ([], [DISABLED, "rmsnorm_backward_add"]),
    "swiglu": ([], [DISABLED, "swiglu,swiglu_backward"]),
    "weights kept in bfloat16": ([], ["--training.mixed_precision_weights", "cast"]),
    "logits in bfloat16": ([], ["--training.logits", "float32"]),
    "attention's gradients in any order": (["--runtime.deterministic", "false"], []),
    "float8": (FLOAT8, []),
}
best = {}  # seconds of a model's step


def pair(scratch, name, model):
    """Twice each, in turns."""
    times = {"with": [], "without": []}
    for turn, which in enumerate(["with", "without", "without", "with"]):
        keys = PAIRS[name][0 if which == "with" else 1]
        times[which].append(train(scratch / str(turn), keys, **TIMED[model])["step_time_s"])
    with_it, without = statistics.median(times["with"]), statistics.median(times["without"])
    best[model] = min(best.get(model, with_it), *times["with"])
    return {"with_ms": round(with_it * 1e3, 3), "without_ms": round(without * 1e3, 3), "ratio": round(without / with_it, 4),
            "all_ms": [[round(t * 1e3, 3) for t in times[which]] for which in ("with", "without")]}


def products(scratch, model):
    """Algorithms of cuBLASLt by measurement, into products_MODEL.toml; then a step with them and without, twice each, in turns."""
    file = out / f"products_{re.sub('[^0-9A-Za-z.]+', '_', model)}.toml"
    recipe_in(scratch, **TIMED[model])
    text = run([*lockstep, "bench", "--products", "r.toml", "--out", file, "--json", *(["--quick"] if args.tiny else [])], 120, cwd=scratch)
    found = json.loads(text.strip().splitlines()[-1])
    times = {"with": [], "without": []}
    for turn, which in enumerate(["with", "without", "without", "with"]):
        keys = ["--runtime.products", file] if which == "with" else []
        times[which].append(train(scratch / str(turn), keys, **TIMED[model])["step_time_s"])
    with_it, without = statistics.median(times["with"]), statistics.median(times["without"])
    return {**{key: found[key] for key in ("products", "faster", "first_s", "chosen_s")}, "with_ms": round(with_it * 1e3, 3),
            "without_ms": round(without * 1e3, 3), "ratio": round(without / with_it, 4)}


EIGHT_BILLION = "8B, 4 layers, all heads of keys"
TIMED[EIGHT_BILLION] = {**TIMED["8B 2 layers"], "layers": 4, "kv_heads": None} if not args.tiny else TIMED["162M"]


def compiled(scratch, model):
    """torch.compile's step compared with ours, in graphs and without."""
    if not args.peer:
        raise Skipped("there is no PyTorch")
    s = TIMED[model]
    ours = [train(scratch / graph, ["--runtime.cuda_graph", graph], **s)["step_time_s"] for graph in ("false", "true")]
    shape = [word for name in ("layers", "heads", "ffn", "vocab", "batch", "seq") for word in (f"--{name}", s[name])]
    text = run([sys.executable, args.peer, "--device", "cuda", "--dtype", "bfloat16", "--compile", "--width", s["dim"], *shape], 240)
    theirs = json.loads(text.strip().splitlines()[-1])["step_time_s"]
    return {"ours_ms": round(ours[0] * 1e3, 3), "as_a_graph_ms": round(ours[1] * 1e3, 3), "torch_compile_ms": round(theirs * 1e3, 3),
            "ratio": round(theirs / min(ours), 4)}


def bench(scratch):
    run([*lockstep, "bench", "--kernels", "cuda", "--out", out / "gpu.toml", *(["--quick"] if args.tiny else ["--seconds", "30"])], 150)
    found = {}
    for name, shape in (("small", SMALL), ("162M", TIMED["162M"])):
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

    if not (out / "gpu.toml").exists():
        raise Skipped("the check `bench` has written no gpu.toml")
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


def context_blocks(scratch):
    """A block of a ring, with what joins it with others, has at least 0.9 of the FLOP/s of cuDNN's attention of as many tokens."""
    import tomllib

    if not (out / "gpu.toml").exists():
        raise Skipped("the check `bench` has written no gpu.toml")
    rows = [r for r in tomllib.loads((out / "gpu.toml").read_text())["kernels"] if r["kernel"].startswith("cudnn.")]
    found, slow = {}, []
    for op in ("attention", "attention_backward"):
        whole = [r for r in rows if r["op"] == op]
        if not whole:
            raise Skipped("cuDNN's attention was not measured")
        block_op = op.replace("attention", "attention_block")
        for block in [r for r in rows if r["op"] == block_op and (args.tiny or r["sizes"][1] >= 16384)]:
            rate = lambda r: r["flops"] / r["cold_s"]
            near = min(whole, key=lambda r: sum(abs(a - b) for a, b in zip(r["sizes"], block["sizes"])))
            ratio = rate(block) / rate(near)
            found[f"{block_op} {block['sizes']}"] = {"flops_per_s": round(rate(block)), "of_attention": round(ratio, 3)}
            if ratio < 0.9:
                slow.append(f"{block_op} {block['sizes']}: {ratio:.3f}")
    if slow and not args.tiny:
        raise Failed(f"slower than 0.9 of attention: {', '.join(slow)}; {json.dumps(found)}")
    return found


# ---- What runs, in this order. A check is a name, a function of a folder, and what else it gets. A new one is a row.
GRAPH, BESIDE = ["--runtime.cuda_graph", "true"], ["--checkpoint.async_mode", "async"]
CHECKS = {
    "right": [
        ("versions", versions),
        *[(f"op {op}", ops, op) for op in NEW_OPS],
        ("attention backward in parts", attention_in_parts),
        ("context attention", context_attention),
        *[(f"context {form}", over_context_ranks, form, "small", form in ("gather", "ring")) for form in CONTEXT],
        ("context ring in parts", over_context_ranks, "ring", "longer", True),
        ("gpt2 twice", equal_bits, "gpt2"),
        ("gpt2 without epilogues", without_epilogues),
        ("gpt2 as a graph", equal_bits, "gpt2", GRAPH),
        ("gpt2 pinned snapshots", equal_bits, "gpt2", BESIDE),
        ("llama twice", equal_bits, "llama"),
        ("llama in float8", in_float8, FLOAT8, SMALL),
        *[(f"llama in float8, {name}", in_float8, keys, IN_BLOCKS) for name, keys in FLOAT8_RECIPES.items()],
        ("llama as a graph", equal_bits, "llama", GRAPH),
        ("llama pinned snapshots", equal_bits, "llama", BESIDE),
        ("llama pinned snapshots, graph", equal_bits, "llama", BESIDE + GRAPH),
        *[(f"peers {layout}", by_peers, layout) for layout in ("fsdp", "tp", "pp", "async_tp_4", "3d")],
        ("nccl's own sums", sums_by_nccl),
        ("nccl several queues", over_nccl, "3d"),
        ("nccl fsdp", over_nccl, "fsdp"),
        ("nccl tp", over_nccl, "tp"),
        *[(f"ranks on one GPU {layout}", on_one_gpu, layout) for layout in ("3d", "async_tp")],
        ("other ops", ops, None),
        *[(f"trace {model}", traced, model) for model in TIMED if model != EIGHT_BILLION],
        ("memcheck of new ops", sanitized, "memcheck", cases_of_new_ops),
        ("racecheck of norms", sanitized, "racecheck", cases_of_norms),
        ("resumed, evaluated, sampled", resumed),
        ("memory", memory),
    ],
    "fast": [
        ("versions", versions),
        ("trace 8B 2 layers, float8", traced, "8B 2 layers", FLOAT8, "_float8"),  # rates of its products, turns and casts
        *[(f"products {model}", products, model) for model in TIMED if model != EIGHT_BILLION],
        *[(f"pair 162M {name}", pair, name, "162M") for name in PAIRS],
        ("torch.compile 162M", compiled, "162M"),
        ("torch.compile 542M", compiled, "542M"),
        *[(f"pair 542M {name}", pair, name, "542M") for name in PAIRS],
        (f"torch.compile {EIGHT_BILLION}", compiled, EIGHT_BILLION),
        ("bench", bench),
        ("context blocks", context_blocks),
        ("kernels", kernels),
    ],
}


def result_of(function, extra):
    if ends - time.monotonic() < 2:
        return {"result": "not reached"}
    try:
        with tempfile.TemporaryDirectory() as scratch:
            return {"result": "passed", "found": function(pathlib.Path(scratch), *extra)}
    except NotReached as e:
        return {"result": "not reached", "why": str(e)}
    except Skipped as e:
        return {"result": "skipped", "why": str(e)}
    except Failed as e:
        return {"result": "failed", "why": str(e)}
    except Exception as e:  # a check that breaks must not keep the others from running
        return {"result": "failed", "why": f"{type(e).__name__}: {e}"}


def main():
    monitor = None
    if shutil.which("nvidia-smi"):  # clocks and power, each second
        monitor = subprocess.Popen(["nvidia-smi", "dmon", "-d", "1", "-o", "T"], stdout=open(out / f"dmon_{args.run}.txt", "w"), stderr=subprocess.DEVNULL)
    lines = []
    for name, function, *extra in CHECKS[args.run]:
        if args.only and not any(word in name for word in args.only):
            continue
        start = time.monotonic()
        line = {"run": args.run, "check": name, **result_of(function, extra)}
        line["seconds"] = round(time.monotonic() - start, 1)
        lines.append(line)
        with open(out / "results.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{name:36} {line['result']:11} {line['seconds']:6} s  {line.get('why') or json.dumps(line.get('found'))}", flush=True)
        if function is versions and line["result"] == "failed":  # no GPU, or none that can be used
            break
    if monitor:
        monitor.terminate()
    print(f"\n{'check':36} result")
    for line in lines:
        print(f"{line['check']:36} {line['result']}{': ' + line['why'].splitlines()[0][:120] if line.get('why') else ''}")
    counts = collections.Counter(line["result"] for line in lines)
    print(", ".join(f"{counts[what]} {what}" for what in ("passed", "failed", "skipped", "not reached")))
    sys.exit(1 if counts["failed"] or not lines else 0)


main()
