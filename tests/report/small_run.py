"""A small run of 40 steps: what tests of its files and pages have in common."""
import os
import subprocess

RECIPE = """[job]
dump_folder = "run"
description = "a small run"
[model]
dim = 32
n_layers = 2
n_heads = 4
n_kv_heads = 2
ffn_dim = 64
[optimizer]
lr = 1e-2
[lr_scheduler]
warmup_steps = 2
total_steps = 40
[training]
dataset_path = "data"
document_mask = true
local_batch_size = 2
seq_len = 32
steps = 40
[parallelism]
data_parallel_shard_degree = 2
[validation]
enable = true
freq = 10
steps = 2
[checkpoint]
enable = true
interval = 20
last_save_model_only = false
[metrics]
log_freq = 2
"""


def prepare(lockstep, folder):
    """Writes the recipe r.toml and its data into a folder. Returns a function that runs a command of lockstep there."""

    def run(*arguments):
        subprocess.run([lockstep, *arguments, "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    os.makedirs(f"{folder}/text")
    for document in range(20):  # some of them are held out
        with open(f"{folder}/text/{document}.txt", "w") as f:
            f.write(f"document {document} says that the quick brown fox jumps over the lazy dog. " * 20)
    with open(f"{folder}/r.toml", "w") as f:
        f.write(RECIPE)
    run("data", "prepare", "text", "--out", "data", "--tokenizer", "bytes", "--heldout", "0.3")
    return run
