#!/usr/bin/env python3
"""Kills, stops and cuts off parts of a job under `lockstep launch` on 4 emulated hosts of 2 ranks, at random moments.

    cluster.sh 4 200mbit failures.py LOCKSTEP [--rounds 20] [--in-a-job 4] [--seed N] [--log FILE]

A round is one failure of each kind: a rank is killed, a rank is stopped, a host is killed, a host's link is cut. What failed comes back once
the job goes on without it. Some rounds in random order, beginning with ranks, are one job of `launch`. For each failure:
the time until somebody says so and until the next step is there, within 10 s, where a link is cut 15 s; the job goes on from its
last checkpoint, on the hosts that are there, with the same global batch; nothing of an earlier attempt runs any more. At the end of a job:
every step counts once, losses are those of a run that was left alone, bit by bit up to the first change of layout, and no process is left.
With --log, results are added to a file, and the table is that of all in it. Exit code 1 where a bound is missed."""
import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from hosts import HOSTS, NAMES, RANKS_A_HOST, cluster, launch, require_cluster
from recipes import degrees, write_recipe

KINDS = {"rank killed": 10, "rank stopped": 10, "host killed": 10, "link cut": 15}  # bound, s
OF_A_RANK = ["rank killed", "rank stopped"]
BATCH, INTERVAL, TIMEOUT_S, TOLERANCE = 24, 5, 4, 1e-4
DETECTED = re.compile(r"has not been heard of|no rank made progress|noticed that|ORTE|launch: exit code")
STEP = re.compile(r"^ *(\d+)/\d+ +[\d.]")  # a row of the table of steps


def processes():
    """Of all jobs here: {pid: (program, environment)}."""
    out = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as e, open(f"/proc/{pid}/comm") as c:
                out[int(pid)] = (c.read().strip(), dict(x.split("=", 1) for x in e.read().decode(errors="replace").split("\0") if "=" in x))
        except OSError:
            pass  # it has ended
    return out


def left_over():
    return {pid: name for pid, (name, env) in processes().items() if "LOCKSTEP_JOB" in env or name in ("mpirun", "orted")}


class Job:
    """One launch, and what it has said so far."""

    def __init__(self, lockstep, recipe, folder, flags):
        self.folder = folder
        self.attempts = []  # {"begun", "hosts", "from", "steps": [(time, step)]}
        self.said = []      # (time, line) of what says that something has failed
        self.text = []
        self.process = launch(lockstep, folder, ["train", recipe, *flags])
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def listen(self):
        for line in self.process.stderr:
            now = time.monotonic()
            self.text.append(line)
            if "launch: mpirun -n" in line:
                hosts = re.search(r"--host (\S+)", line)[1]
                self.attempts.append({"begun": now, "hosts": [h.split(":")[0] for h in hosts.split(",")], "from": 0, "steps": []})
            elif DETECTED.search(line):
                self.said.append((now, line))
            elif found := re.search(r"resumed from .* at step (\d+)", line):
                self.attempts[-1]["from"] = int(found[1])
            elif found := STEP.search(line):
                self.attempts[-1]["steps"].append((now, int(found[1])))

    def wait(self, happened, seconds):
        """Whether it has, in that time."""
        end = time.monotonic() + seconds
        while not happened() and time.monotonic() < end and self.process.poll() is None:
            time.sleep(0.01)
        return bool(happened())

    def ranks(self):
        """{rank: pid} of the processes that train now, or are left."""
        return [(int(env["OMPI_COMM_WORLD_RANK"]), pid) for pid, (name, env) in processes().items() if name == "lockstep" and "OMPI_COMM_WORLD_RANK" in env]

    def stop(self):
        """Ends it with a checkpoint: what --json says."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.thread.join(5)
        out = [line for line in self.process.stdout.read().splitlines() if line.startswith('{"code"')]  # mpirun may have written there too
        return json.loads(out[-1]) if out else {"code": None, "step": 0, "attempts": []}


def strike(job, kind, rng):
    """Makes it fail: (what has, the host that is away now, what brings that back)."""
    if kind in OF_A_RANK:
        rank, pid = rng.choice(sorted(job.ranks()))
        os.kill(pid, signal.SIGKILL if kind == "rank killed" else signal.SIGSTOP)
        return f"rank {rank}", None, None
    host = rng.choice(job.attempts[-1]["hosts"])
    cluster("kill" if kind == "host killed" else "cut", host)
    return host, host, "start" if kind == "host killed" else "join"


def fail_once(job, kind, rng):
    """One line, and its record."""
    count = len(job.attempts)
    before = job.attempts[-1]
    wrong = []
    if not job.wait(lambda: before["steps"], 30):
        raise RuntimeError("the job does not train")
    job.wait(lambda: False, rng.uniform(0.5, 3))
    if len(job.attempts) != count or job.process.poll() is not None:
        raise RuntimeError("the job ended by itself")
    running = len(job.ranks())
    if running != RANKS_A_HOST * len(before["hosts"]):
        wrong.append(f"{running} processes trained before")
    spoken = len(job.said)
    struck = time.monotonic()
    what, away, back = strike(job, kind, rng)
    job.wait(lambda: len(job.attempts) > count and job.attempts[count]["steps"], 30)
    if len(job.attempts) == count or not job.attempts[count]["steps"]:
        raise RuntimeError(f"after {kind} of {what} the job does not go on; there are\n" +
                           subprocess.run(["ps", "-eo", "pid,ppid,stat,etimes,args"], stdout=subprocess.PIPE, text=True).stdout)
    if back:
        cluster(back, away)
    after = job.attempts[count]
    detected = job.said[spoken][0] - struck if len(job.said) > spoken else None
    on = after["steps"][0][0] - struck
    first = after["steps"][0][1]
    last = last_before(job.folder, first)
    lost = last - after["from"]
    if detected is None:
        wrong.append("nobody says what happened")
    if on > KINDS[kind]:
        wrong.append(f"more than {KINDS[kind]} s")
    if first != after["from"] + 1:
        wrong.append(f"step {first} follows {after['from']}")
    if lost > INTERVAL:
        wrong.append(f"{lost} steps are lost")
    if after["hosts"] != [h for h in NAMES if h != away]:
        wrong.append(f"goes on on {' '.join(after['hosts'])}")
    record = {"kind": kind, "what": what, "detected_s": detected, "on_s": on, "hosts": len(after["hosts"]), "lost": lost, "wrong": wrong}
    print(f"{kind:<13}{what:<7} at step {last:>4}: said after {detected or 0:5.2f} s, next step after {on:5.2f} s on {len(after['hosts'])} hosts, "
          f"from step {after['from']} ({lost} again){'  WRONG: ' + '; '.join(wrong) if wrong else ''}", flush=True)
    return record


def steps_taken(folder):
    """In order, also those that were taken again."""
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        return [json.loads(line)["step"] for line in f if line.endswith("\n")]


def last_before(folder, first):
    """The step that was taken before an attempt that began with `first`."""
    steps = steps_taken(folder)
    return steps[len(steps) - 2 - steps[::-1].index(first)]


def metrics(folder):
    """Losses as they are written, by step; of a step that was taken again the last."""
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        lines = [json.loads(line) for line in f]
    return {m["step"]: m["loss_metrics/global_avg_loss"] for m in lines}


def judge(job, said, lockstep, recipe, flags, folder):
    """What is wrong with a job as a whole."""
    wrong = []
    if said["code"] != 4:
        wrong.append(f"launch ended with code {said['code']}")
        return wrong
    for a, b in zip(said["attempts"], said["attempts"][1:]):
        if b["from_step"] != a["to_step"]:
            wrong.append(f"attempt {b['attempt']} begins at step {b['from_step']}, the one before ended at {a['to_step']}")
    steps = said["step"]
    with open(os.path.join(job.folder, "checkpoint", f"step-{steps:08d}", "manifest.json")) as f:
        manifest = json.load(f)
    if (manifest["steps"], manifest["samples_seen"], manifest["values"]["steps"]) != (steps, steps * BATCH, steps):
        wrong.append(f"{manifest['values']['steps']} updates of {manifest['samples_seen']} samples in {steps} steps of {BATCH}")
    whole = os.path.join(folder, "whole")
    subprocess.run([lockstep, "train", recipe, *flags, "--job.dump_folder", whole, "--cluster.ranks", str(HOSTS * RANKS_A_HOST), "--checkpoint.enable",
                    "false", "--training.steps", str(steps)], check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    expected, got = metrics(whole), metrics(job.folder)
    changed = next((a["from_step"] for a in said["attempts"] if len(a["hosts"]) < HOSTS), steps)
    if sorted(got) != list(range(1, steps + 1)):
        wrong.append("not every step is there")
        return wrong
    others = [s for s in range(1, changed + 1) if got[s] != expected[s]]
    if others:
        wrong.append(f"the loss of step {others[0]} has other bits")
    off = max(abs(got[s] - expected[s]) for s in expected)
    if off > TOLERANCE:
        wrong.append(f"a loss is off by {off:.4f}")
    print(f"{steps} steps in {len(said['attempts'])} attempts: losses with the bits of an undisturbed run up to step {changed}, then within {off:.1e}", flush=True)
    return wrong


def run_job(lockstep, kinds, rng, results):
    with tempfile.TemporaryDirectory() as folder:
        recipe = write_recipe(folder, "failures", dim=64, layers=2, vocab=512, seq=64)
        flags = [*degrees(data_parallel_replicate=HOSTS, data_parallel_shard=RANKS_A_HOST), "--training.global_batch_size", str(BATCH), "--metrics.log_freq", "1",
                 "--training.steps", "1000000", "--lr_scheduler.total_steps", "1000000", "--comm.train_timeout_seconds", str(TIMEOUT_S)]
        out = os.path.join(folder, "out")
        os.mkdir(out)
        job = Job(lockstep, recipe, out, [*flags, "--job.dump_folder", out, "--checkpoint.enable", "true", "--checkpoint.interval", str(INTERVAL),
                                          "--checkpoint.keep_latest_k", "3", "--checkpoint.last_save_model_only", "false"])
        wrong = []
        try:
            job.wait(lambda: job.attempts, 30)
            for kind in kinds:
                results.append(fail_once(job, kind, rng))
            job.wait(lambda: len(job.attempts[-1]["steps"]) > 2 * INTERVAL, 30)
        except RuntimeError as error:
            wrong.append(str(error))
        said = job.stop()
        if not wrong:
            wrong += judge(job, said, lockstep, recipe, flags, folder)
        end = time.monotonic() + 2
        while left_over() and time.monotonic() < end:
            time.sleep(0.05)
        if left := left_over():
            wrong.append(f"processes are left: {left}")
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        for text in wrong:
            print(f"WRONG: {text}")
        if wrong:
            print("".join(line for line in job.text if not STEP.search(line) and "checkpoint of step" not in line)[-6000:], flush=True)
        return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--rounds", type=int, default=20, help="failures of each kind")
    parser.add_argument("--in-a-job", type=int, default=4, help="rounds in one job of launch")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--log", help="results are added to this file")
    args = parser.parse_args()
    require_cluster()
    print(f"seed {args.seed}", flush=True)
    rng = random.Random(args.seed)
    results, wrong = [], []
    for begin in range(0, args.rounds, args.in_a_job):
        rounds = min(args.in_a_job, args.rounds - begin)
        rest = OF_A_RANK * (rounds - 1) + ["host killed", "link cut"] * rounds
        rng.shuffle(rest)
        wrong += run_job(os.path.abspath(args.lockstep), rng.sample(OF_A_RANK, 2) + rest, rng, results)
    if args.log:
        with open(args.log, "a") as f:
            f.writelines(json.dumps(r) + "\n" for r in results)
        with open(args.log) as f:
            results = [json.loads(line) for line in f]
    print(f"\n{'failure':<14}{'times':>6}{'said after: median, most s':>29}{'next step after: median, most s':>34}{'within':>9}{'steps again, most':>19}{'wrong':>7}")
    for kind, bound in KINDS.items():
        of = [r for r in results if r["kind"] == kind]
        if not of:
            continue
        said, on = [r["detected_s"] or 99 for r in of], [r["on_s"] for r in of]
        print(f"{kind:<14}{len(of):>6}{statistics.median(said):>20.2f}{max(said):>9.2f}{statistics.median(on):>25.2f}{max(on):>9.2f}{bound:>7} s"
              f"{max(r['lost'] for r in of):>19}{sum(bool(r['wrong']) for r in of):>7}")
    sys.exit(1 if wrong or any(r["wrong"] for r in results) else 0)


if __name__ == "__main__":
    main()
