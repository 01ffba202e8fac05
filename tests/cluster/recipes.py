"""Recipes and layouts that are run on an emulated cluster of 4 hosts with 2 ranks each."""
import os


def degrees(**by_axis):
    return [x for axis, degree in by_axis.items() for x in (f"--parallelism.{axis}_degree", str(degree))]


FSDP = degrees(data_parallel_shard=8)
HSDP = degrees(data_parallel_shard=2, data_parallel_replicate=4)
PIPELINE = [*degrees(tensor_parallel=2, pipeline_parallel=4), "--training.local_batch_size", "8", "--parallelism.pipeline_parallel_first_stage_less_layers", "-1",
            "--parallelism.pipeline_parallel_last_stage_less_layers", "-1"]
NODES = [*FSDP, "--partition.weights", "node", "--partition.gradients", "node", "--partition.optimizer", "world"]
INT8 = ["--partition.quantized_weights", "int8", "--partition.quantized_gradients", "int8"]
PARTITIONS = {
    "nodes": NODES,
    "nodes, int8": [*NODES, *INT8],
    "nodes, int8 int4": [*NODES, *INT8[:2], "--partition.quantized_gradients", "int4"],
    "hpz": [*FSDP, "--partition.preset", "hpz"],
    "zeropp": [*FSDP, "--partition.preset", "zeropp"],
}

def context(method, on_heads=0):
    return [*degrees(context_parallel=8), "--parallelism.context_parallel_rotate_method", method,
            "--parallelism.context_parallel_head_degree", str(on_heads), "--model.n_heads", "8", "--model.n_kv_heads", "8"]


CONTEXT = {"gather 8": context("allgather"), "ring 8": context("alltoall"), "heads 8": context("ulysses"),
           "heads 2, ring 4": context("alltoall", 2), "heads 2, gather 4": context("allgather", 2)}


def write_recipe(folder, name, dim, layers, vocab, seq):
    """A Llama on synthetic tokens, in float32."""
    path = os.path.join(folder, f"{name}.toml")
    with open(path, "w") as f:
        f.write(f"""[model]
dim = {dim}
n_layers = {layers}
n_heads = 4
n_kv_heads = 4
ffn_dim = {dim * 11 // 4}
vocab_size = {vocab}
rope_theta = 10000.0
rope_scaling_factor = 1.0
[optimizer]
lr = 3e-4
[lr_scheduler]
warmup_steps = 0
[training]
mixed_precision_param = "float32"
dataset = "synthetic"
local_batch_size = 1
seq_len = {seq}
[runtime]
threads_per_rank = 1
[metrics]
log_freq = 100
[activation_checkpoint]
mode = "none"
""")
    return path
