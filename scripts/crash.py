#!/usr/bin/env python3
"""Kills training everywhere and shows that nothing is lost (`make crash`; needs strace, and root for the small disk).

 1. at every write, fsync and rename of every save of a run, one run each, with checkpoints written beside training and not
 2. at 100 random moments of a run
 3. with a disk that fills up (a tmpfs of a few hundred KiB)
After each kill the same command is run to its end. Then every step's loss and gradient norm, as often as it was done, must be
that of a run left alone, bit by bit, and so must the last checkpoint's files. Arguments: the lockstep binary, random moments.
"""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

RECIPE = """[job]
dump_folder = "out"
[model]
dim = 64
n_layers = 2
n_heads = 4
n_kv_heads = 2
ffn_dim = 96
vocab_size = 3001
[optimizer]
lr = 1e-2
[lr_scheduler]
warmup_steps = 0
[metrics]
log_freq = 1
[training]
mixed_precision_param = "float32"
dataset = "synthetic"
local_batch_size = 1
global_batch_size = 4
seq_len = 16
steps = {steps}
[parallelism]
data_parallel_shard_degree = 2
[checkpoint]
enable = true
interval = {interval}
keep_latest_k = 2
async_mode = "{mode}"
last_save_model_only = false
[activation_checkpoint]
mode = "none"
"""
# The calls of a save that change what is on the disk; unlink and rmdir are the removal of old checkpoints.
CALLS = ["pwrite64", "fsync", "rename", "renameat2", "mkdir", "unlinkat", "openat", "close"]
KILLED = (-9, 137)


def run(binary, folder, prefix=(), kill_after_s=None):
    process = subprocess.Popen([*prefix, binary, "train", "r.toml"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if kill_after_s is not None:
        try:
            process.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            process.kill()
    _, err = process.communicate()
    return process.returncode, err


def losses(folder):
    """By step; a torn last line is what a kill may leave, and the next run removes it."""
    seen = {}
    with open(f"{folder}/out/metrics.jsonl") as file:
        for line in file:
            record = json.loads(line)
            seen.setdefault(record["step"], set()).add((repr(record["loss_metrics/global_avg_loss"]), repr(record["grad_norm"])))
    return seen


def contents(folder):
    root = f"{folder}/out/checkpoint"
    last = f"{root}/{max(name for name in os.listdir(root) if re.fullmatch('step-[0-9]+', name))}"
    return {name: open(f"{last}/{name}", "rb").read() for name in sorted(os.listdir(last))}


class Trial:
    """A folder with the recipe; its run is held to `whole`."""

    def __init__(self, binary, steps, interval, mode):
        self.binary = binary
        self.folder = tempfile.mkdtemp(prefix="lockstep-crash-")
        with open(f"{self.folder}/r.toml", "w") as file:
            file.write(RECIPE.format(steps=steps, interval=interval, mode=mode))

    def finish_as(self, whole, what):
        code, err = run(self.binary, self.folder)
        if code != 0:
            sys.exit(f"{what}: the run does not go on (exit code {code}):\n{err}")
        if losses(self.folder) != whole["losses"]:
            sys.exit(f"{what}: losses differ from those of the run left alone, in {self.folder}")
        if contents(self.folder) != whole["contents"]:
            sys.exit(f"{what}: the last checkpoint differs from that of the run left alone, in {self.folder}")
        left = [n for n in os.listdir(f"{self.folder}/out/checkpoint") if not re.fullmatch(r"step-[0-9]+|\.lock", n)]
        if left:
            sys.exit(f"{what}: {left} was not cleaned away")
        shutil.rmtree(self.folder)
        resumed = re.search(r"resumed from .*step-0*(\d+) at", err)
        return resumed.group(1) if resumed else "the beginning"


def undisturbed(binary, steps, interval, mode):
    trial = Trial(binary, steps, interval, mode)
    start = time.monotonic()
    code, err = run(binary, trial.folder)
    if code != 0:
        sys.exit(err)
    whole = {"losses": losses(trial.folder), "contents": contents(trial.folder), "seconds": time.monotonic() - start}
    shutil.rmtree(trial.folder)
    return whole


def save_paths(folder, saves):
    """Everything that these saves touch, as strace sees it in arguments and behind descriptors, so that it counts only their calls."""
    root = "out/checkpoint"
    paths = [root]
    for step in saves:
        name = f"{root}/step-{step:08}"
        for place in (name, name + ".partial"):
            paths += [place, *(f"{place}/{file}" for file in ("model.safetensors", "optimizer.safetensors", "manifest.json"))]
    return [argument for path in paths for seen in (path, f"{folder}/{path}") for argument in ("-P", seen)]


def every_call(binary, steps, interval, mode, saves):
    whole = undisturbed(binary, steps, interval, mode)
    kills = 0
    resumed = {}
    for call in CALLS:
        number = 0
        while True:
            number += 1
            trial = Trial(binary, steps, interval, mode)
            code, _ = run(binary, trial.folder,
                          ["strace", "-f", "-qq", "-o", "/dev/null", *save_paths(trial.folder, saves), "-e", f"trace={call}", "-e",
                           f"inject={call}:signal=SIGKILL:when={number}"])
            if code not in KILLED:
                if code != 0:
                    sys.exit(f"{mode}, {call} {number}: exit code {code}")
                shutil.rmtree(trial.folder)
                break
            kills += 1
            at = trial.finish_as(whole, f"{mode}, killed at {call} {number}")
            resumed[at] = resumed.get(at, 0) + 1
        print(f"{mode}, saves of steps {saves}: killed at each of {number - 1} {call}", flush=True)
    print(f"{mode}, saves of steps {saves}: {kills} kills, all went on bit by bit; from step: {resumed}", flush=True)


def random_moments(binary, count, mode, seed):
    steps, interval = 60, 3
    whole = undisturbed(binary, steps, interval, mode)
    draw = random.Random(seed)
    trial, kills, trials = Trial(binary, steps, interval, mode), 0, 0
    while kills < count:
        code, err = run(binary, trial.folder, kill_after_s=draw.uniform(0.02, 1.1 * whole["seconds"]))
        if code in KILLED:
            kills += 1
        elif code != 0:
            sys.exit(f"random moments: exit code {code}:\n{err}")
        if code == 0 or kills == count:
            trial.finish_as(whole, f"random moments (seed {seed})")
            trials += 1
            trial = Trial(binary, steps, interval, mode)
    shutil.rmtree(trial.folder)
    print(f"{mode}: killed at {kills} random moments of {trials} runs (seed {seed}), all went on bit by bit", flush=True)


def full_disk(binary):
    steps, interval = 8, 1
    whole = undisturbed(binary, steps, interval, "async")
    trial = Trial(binary, steps, interval, "async")
    disk = f"{trial.folder}/out"
    os.mkdir(disk)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], stderr=subprocess.DEVNULL).returncode != 0:
        print("full disk: skipped, no tmpfs can be mounted here")
        return
    try:
        code, err = run(binary, trial.folder)
        said = "No space left on device" in err and re.search(r"The last complete checkpoint is out/checkpoint/step-\d+\.", err)
        if code != 1 or not said:
            sys.exit(f"full disk: exit code {code}:\n{err}")
        print("full disk: " + [line for line in err.splitlines() if "No space left" in line][0])
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        code, err = run(binary, trial.folder)
        if code != 0 or losses(trial.folder) != whole["losses"] or contents(trial.folder) != whole["contents"]:
            sys.exit(f"full disk: the run does not go on as if nothing had been:\n{err}")
        print("full disk: with more room the run went on bit by bit")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        code, err = run(binary, trial.folder)
        if code != 1 or "Read-only file system" not in err:
            sys.exit(f"read-only folder: exit code {code}:\n{err}")
        print("read-only folder: " + err.strip().splitlines()[-1])
    finally:
        subprocess.run(["umount", disk])
        shutil.rmtree(trial.folder)


def main():
    binary = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/release/lockstep")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    full_disk(binary)
    random_moments(binary, count, "async", seed=int(os.environ.get("LOCKSTEP_SEED", "1")))
    if shutil.which("strace"):
        # strace counts a thread's calls, and a save beside training has a thread of its own.
        for mode, saves in (("disabled", [2, 4, 5]), ("async", [2]), ("async", [5])):
            every_call(binary, steps=5, interval=2, mode=mode, saves=saves)
    else:
        sys.exit("kills at every call need strace: apt-get install strace")


if __name__ == "__main__":
    main()
