#!/usr/bin/env python3
"""Trains for hours under `lockstep launch` with a fault every minute, and shows that nothing is lost (`make soak HOURS=6`).

    soak.py LOCKSTEP [--hours 6] [--every 60] [--seed N] [--islands] [--folder F]

One job of 4 ranks in 4 processes, FSDP and tensor parallelism. A fault is drawn: see KINDS. After each one the job must have a new
step within 120 s. At the end it is stopped by SIGTERM, and the same steps are trained without a fault: every step's loss and gradient
norm, as often as it was done, and the last checkpoint must be the same, bit by bit.
With --islands: three islands of 2 ranks that are jobs of their own. A rank of the second or third is killed or stopped; both must
come in again. The first is never touched, so that its processes live for all the time.
Each minute, before the fault: memory of launch and of every rank, open files of launch, files below the dump folder and in /dev/shm
(those of Open MPI excepted, which stay where mpirun is killed with all its processes).
Of processes that live on, the largest memory of the second half may exceed that of the first by 2 MiB and 2 %; no file may be left.
Exit code 1 with one line if any of this does not hold."""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from crash import losses

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "cluster"))
from failures import processes  # noqa: E402

RECIPE = """[job]
dump_folder = "out"
[model]
dim = 192
n_layers = 4
n_heads = 4
n_kv_heads = 2
ffn_dim = 512
vocab_size = 3001
[optimizer]
lr = 1e-3
[lr_scheduler]
warmup_steps = 0
decay_ratio = 0.0
[metrics]
log_freq = 1
[training]
mixed_precision_param = "float32"
dataset = "synthetic"
local_batch_size = 1
global_batch_size = {batch}
seq_len = 128
steps = {steps}
[runtime]
threads_per_rank = 1
[comm]
train_timeout_seconds = 20
[parallelism]
{degrees}
[checkpoint]
enable = true
interval = 20
keep_latest_k = 2
last_save_model_only = false
[activation_checkpoint]
mode = "none"
"""
ONE_JOB = {"batch": 8, "degrees": "data_parallel_shard_degree = 2\ntensor_parallel_degree = 2"}
ISLANDS = {"batch": 12, "degrees": "data_parallel_shard_degree = 2\n[fault_tolerance]\nenable = true\nsemi_sync_method = \"local_sgd\"\n"
                                   "group_size = 3\nsync_steps = 10"}
FOREVER = 10**7
KINDS = ["a rank is killed", "a rank is stopped for ever", "a rank is stopped for a second", "mpirun is killed", "all is killed",
         "all is killed during a save", "all is killed, and the newest checkpoint is cut off", "all is killed, and a bit of the newest checkpoint is flipped",
         "stopped by SIGTERM"]
OF_ISLANDS = KINDS[:2]
ON_AGAIN_S = 120
OF_OPEN_MPI = "vader_segment"  # in /dev/shm, left by Open MPI where mpirun is killed together with its processes


def fail(message):
    sys.exit(f"soak: {message}")


class Job:
    def __init__(self, lockstep, folder, recipe, options=()):
        self.lockstep, self.folder, self.options = lockstep, folder, options
        with open(f"{folder}/r.toml", "w") as file:
            file.write(recipe)
        self.process = None

    def start(self):
        with open(f"{self.folder}/stderr.txt", "a") as err:
            self.process = subprocess.Popen([self.lockstep, "launch", "--mpirun", "mpirun --allow-run-as-root --oversubscribe", "--max-restarts", "20", *self.options,
                                             "--", "train", "r.toml"], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=err, start_new_session=True)

    def mine(self):
        """{pid: (name, environment)} of the processes of this folder, launch excepted."""
        out = {}
        for pid, (name, environment) in processes().items():
            try:
                if name in ("lockstep", "mpirun") and os.readlink(f"/proc/{pid}/cwd") == self.folder and pid != self.process.pid:
                    out[pid] = (name, environment)
            except OSError:
                pass  # it has ended
        return out

    def ranks(self, island=None):
        return sorted(pid for pid, (name, environment) in self.mine().items()
                      if name == "lockstep" and "OMPI_COMM_WORLD_RANK" in environment and (island is None or f"replica_id\0{island}\0" in command(pid)))

    def metrics(self, island=0):
        return f"{self.folder}/out/{f'island.{island}/' if island else ''}metrics.jsonl"

    def steps(self, island=0):
        """The last step that is written."""
        try:
            with open(self.metrics(island), "rb") as file:
                file.seek(max(0, os.path.getsize(file.name) - 4096))
                lines = file.read().split(b"\n")
            return json.loads(lines[-2])["step"] if len(lines) > 1 and lines[-2] else 0
        except (OSError, ValueError, KeyError):
            return 0

    def written(self, island=0):
        try:
            status = os.stat(self.metrics(island))
            return status.st_ino, status.st_size
        except OSError:
            return 0, 0

    def goes_on(self, island=0):
        """Seconds until two more lines are there."""
        begun, changes, before = time.monotonic(), 0, self.written(island)
        while changes < 2:
            if time.monotonic() - begun > ON_AGAIN_S:
                fail(f"no new step within {ON_AGAIN_S} s; {self.folder}/stderr.txt ends with\n{tail(f'{self.folder}/stderr.txt')}")
            if self.process.poll() is not None:
                fail(f"launch ended with exit code {self.process.returncode}:\n{tail(f'{self.folder}/stderr.txt')}")
            time.sleep(0.05)
            now = self.written(island)
            changes, before = changes + (now != before), now
        return time.monotonic() - begun

    def kill_all(self):
        for pid in [self.process.pid, *self.mine()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        while self.mine():
            time.sleep(0.05)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        if (code := self.process.wait(120)) != 4:
            fail(f"SIGTERM gives exit code {code} in place of 4:\n{tail(f'{self.folder}/stderr.txt')}")

    def checkpoints(self):
        root = f"{self.folder}/out/checkpoint"
        return sorted(f"{root}/{name}" for name in (os.listdir(root) if os.path.isdir(root) else []) if re.fullmatch("step-[0-9]+", name))

    def newest_checkpoint(self):
        return self.checkpoints()[-1]


def command(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def tail(path):
    return "".join(open(path, errors="replace").readlines()[-15:])


def resident(pid):
    """MiB."""
    try:
        return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1]) / 1024
    except (OSError, TypeError):
        return None


def strike(job, kind, draw):
    if kind in ("a rank is killed", "mpirun is killed"):
        name = "mpirun" if kind.startswith("mpirun") else "lockstep"
        os.kill(draw.choice(sorted(pid for pid, (n, e) in job.mine().items() if n == name and (name == "mpirun" or "OMPI_COMM_WORLD_RANK" in e))), signal.SIGKILL)
    elif kind == "a rank is stopped for ever":
        os.kill(draw.choice(job.ranks()), signal.SIGSTOP)
        time.sleep(25)
    elif kind == "a rank is stopped for a second":
        pid = draw.choice(job.ranks())
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1)
        os.kill(pid, signal.SIGCONT)
    elif kind == "stopped by SIGTERM":
        job.terminate()
        job.start()
    else:
        while "newest checkpoint" in kind and len(job.checkpoints()) < 2:
            time.sleep(0.05)
        if "during a save" in kind:
            root, end = f"{job.folder}/out/checkpoint", time.monotonic() + 60
            while time.monotonic() < end and not any(name.endswith(".partial") for name in os.listdir(root)):
                time.sleep(0.001)
        job.kill_all()
        if "newest checkpoint" in kind:
            damage(f"{job.newest_checkpoint()}/{draw.choice(['model', 'optimizer'])}.safetensors", "flipped" in kind, draw)
        job.start()


def damage(path, flips, draw):
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        if not flips:
            return file.truncate(draw.randrange(size))
        place = draw.randrange(size)
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << draw.randrange(8)]))


def strike_island(job, kind, draw):
    island = draw.choice([1, 2])
    os.kill(draw.choice(job.ranks(island)), signal.SIGKILL if kind == "a rank is killed" else signal.SIGSTOP)
    if kind != "a rank is killed":
        time.sleep(25)
    return island


class Watch:
    """What each minute shows of memory and files."""

    def __init__(self, job):
        self.job, self.memory, self.files, self.restarts = job, {}, [], 0

    def look(self, pids):
        for name, pid in pids.items():
            if (mib := resident(pid)) is not None:
                self.memory.setdefault((name, pid), []).append(mib)
        handles = len(os.listdir(f"/proc/{self.job.process.pid}/fd"))
        names = [f for _, _, files in os.walk(f"{self.job.folder}/out") for f in files]
        self.files.append((handles, len([n for n in names if not n.startswith("flight")]), len([n for n in os.listdir("/dev/shm") if not n.startswith(OF_OPEN_MPI)])))

    def report(self, least):
        """Of processes that were seen at least so often."""
        for (name, pid), seen in sorted(self.memory.items()):
            if len(seen) < least:
                continue
            half = len(seen) // 2
            first, second = max(seen[:half]), max(seen[half:])
            print(f"  {name}, {len(seen)} minutes: at most {first:.1f} MiB in the first half, {second:.1f} in the second", flush=True)
            if second > first * 1.02 + 2:
                fail(f"memory of {name} grew")
        for what, column in (("open files of launch", 0), ("files in the dump folder", 1), ("files in /dev/shm", 2)):
            seen = [row[column] for row in self.files]
            half = max(1, len(seen) // 2)
            print(f"  {what}: at most {max(seen[:half])} in the first half, {max(seen[half:] or seen)} in the second", flush=True)
            if seen[half:] and max(seen[half:]) > max(seen[:half]) + 8:
                fail(f"{what}: more and more")


def soak(job, args, draw):
    job.start()
    job.goes_on()
    watch, count, on_again, struck = Watch(job), {}, {}, 0
    end = time.monotonic() + 3600 * args.hours
    while time.monotonic() < end:
        minute = time.monotonic()
        time.sleep(draw.uniform(0.2, 0.7) * args.every)
        pids = {"launch": job.process.pid}
        if args.islands:
            pids |= {f"rank {i} of the first island": pid for i, pid in enumerate(job.ranks(0))}
        watch.look(pids)
        kind = draw.choice(OF_ISLANDS if args.islands else KINDS)
        if args.islands:
            island = strike_island(job, kind, draw)
            job.goes_on()
            seconds = job.goes_on(island)
        else:
            strike(job, kind, draw)
            seconds = job.goes_on()
        struck += 1
        count[kind] = count.get(kind, 0) + 1
        on_again.setdefault(kind, []).append(seconds)
        print(f"{time.strftime('%H:%M:%S')} {struck}: {kind}; two steps after {seconds:.1f} s, at step {job.steps()}", flush=True)
        time.sleep(max(0.0, args.every - (time.monotonic() - minute)))
    job.goes_on()
    job.terminate()
    for kind in sorted(count):
        print(f"  {kind}: {count[kind]} times, then two steps within {statistics.median(on_again[kind]):.1f} s (median), {max(on_again[kind]):.1f} s (most)")
    watch.report(least=30 if args.hours >= 1 else 3)
    if left := job.mine():
        fail(f"processes are left: {left}")
    return struck


def hold_to_undisturbed(job, args):
    """Trains the same steps without a fault."""
    last = int(re.search(r"(\d+)$", job.newest_checkpoint())[1])
    with tempfile.TemporaryDirectory() as folder:
        other = Job(args.lockstep, os.path.realpath(folder), RECIPE.format(steps=last, **ONE_JOB))
        other.start()
        if (code := other.process.wait()) != 0:
            fail(f"the undisturbed run ends with {code}:\n{tail(f'{folder}/stderr.txt')}")
        got, want = losses(job.folder), losses(other.folder)
        got = {step: seen for step, seen in got.items() if step <= last}
        if got != want:
            step = min(s for s in want if got.get(s) != want[s])
            fail(f"step {step}: {got.get(step)} in place of {want[step]}, in {job.folder}")
        for name in ("model.safetensors", "optimizer.safetensors"):
            if open(f"{job.newest_checkpoint()}/{name}", "rb").read() != open(f"{other.newest_checkpoint()}/{name}", "rb").read():
                fail(f"{name} of step {last} differs from the undisturbed run's")
    print(f"{last} steps: losses, gradient norms and the last checkpoint are those of an undisturbed run, bit by bit", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=os.path.realpath)
    parser.add_argument("--hours", type=float, default=6)
    parser.add_argument("--every", type=float, default=60, help="seconds from one fault to the next")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--islands", action="store_true")
    parser.add_argument("--folder", help="is kept; default: a temporary one")
    args = parser.parse_args()
    folder = os.path.realpath(args.folder or tempfile.mkdtemp(prefix="lockstep-soak-"))
    os.makedirs(folder, exist_ok=True)
    if os.path.exists(f"{folder}/out"):
        fail(f"{folder}/out is there already")
    print(f"{'islands' if args.islands else 'one job'}, seed {args.seed}, in {folder}", flush=True)
    job = Job(args.lockstep, folder, RECIPE.format(steps=FOREVER, **(ISLANDS if args.islands else ONE_JOB)))
    begun = time.monotonic()
    try:
        struck = soak(job, args, random.Random(args.seed))
    finally:
        if job.process.poll() is None:
            job.kill_all()
    hours = (time.monotonic() - begun) / 3600
    if not args.islands:
        hold_to_undisturbed(job, args)
    print(f"{struck} faults in {hours:.2f} hours: nothing lost, memory flat", flush=True)
    if not args.folder:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
