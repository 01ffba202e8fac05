#!/usr/bin/env python3
"""Kills, stops and cuts off islands that are jobs of their own under `lockstep launch`: 4 emulated hosts, an island of 2 ranks each.

    cluster.sh 4 200mbit island_failures.py LOCKSTEP [--rounds 5] [--seed N]

A round is one failure of each kind in random order, each of another island at a random moment: a rank is killed, a rank is stopped, a
host is killed, a host's link is cut. What failed comes back once it has been noticed. For each: the others go on, and how long their
longest step was; the time until the island is left out of meetings, and until it is in again with the state of another one, from when
its host is back. In the end all islands have taken all steps, and two checkpoints of the last meeting have the same weights. Exit code
1: the others stood still for longer than 12 s, an island did not come back within 30 s, or the weights differ."""
import argparse
import hashlib
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

from failures import processes
from hosts import HOSTS, NAMES, RANKS_A_HOST, cluster, launch, require_cluster
from recipes import degrees, write_recipe

KINDS = ["rank killed", "rank stopped", "host killed", "link cut"]
TIMEOUT_S, SYNC, STILL_S, BACK_S = 4, 10, 12, 30
LEFT, IN = re.compile(r"island (\d+) is left out of meetings"), re.compile(r"island (\d+) comes in at step (\d+)")


class Job:
    def __init__(self, lockstep, recipe, folder, flags):
        self.folder, self.left, self.entered, self.text = folder, [], [], []
        self.process = launch(lockstep, folder, ["train", recipe, *flags], "--max-restarts", "100")
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stderr:
            now = time.monotonic()
            self.text.append(line)
            for found, where in ((LEFT.search(line), self.left), (IN.search(line), self.entered)):
                if found:
                    where.append((now, int(found[1])))

    def written(self, island):
        """Bytes of an island's metrics, which grow with each step."""
        try:
            return os.path.getsize(os.path.join(self.folder, *([f"island.{island}"] if island else []), "metrics.jsonl"))
        except OSError:
            return 0

    def go_on(self, seconds, steps=2 * SYNC):
        """Whether all islands take some steps in that time."""
        least = {i: self.written(i) + 100 * steps for i in range(HOSTS)}  # a line has more than 100 bytes
        return self.wait(lambda: all(self.written(i) > least[i] for i in range(HOSTS)), seconds)

    def wait(self, happened, seconds):
        end = time.monotonic() + seconds
        while not happened() and time.monotonic() < end and self.process.poll() is None:
            time.sleep(0.02)
        return bool(happened())


def rank_of(island):
    """A process of it."""
    mine = [pid for pid, (name, env) in processes().items()
            if name == "lockstep" and env.get("OMPI_COMM_WORLD_RANK") == "1" and f"replica_id {island}" in command(pid)]
    return mine[0] if mine else None


def command(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as f:
            return f.read().replace("\0", " ")
    except OSError:
        return ""


def fail_once(job, kind, island, rng):
    job.wait(lambda: False, rng.uniform(0.5, 2))
    host = NAMES[island]
    left, entered = len(job.left), len(job.entered)
    others = [i for i in range(HOSTS) if i != island]
    struck = time.monotonic()
    if kind in ("rank killed", "rank stopped"):
        os.kill(rank_of(island), signal.SIGKILL if kind == "rank killed" else signal.SIGSTOP)
    else:
        cluster("kill" if kind == "host killed" else "cut", host)
    # The longest time in which none of the others takes a step.
    before, moved, still = {i: job.written(i) for i in others}, {i: struck for i in others}, 0.0
    back = None

    def is_in():
        nonlocal still, back
        now = time.monotonic()
        for i in others:
            if job.written(i) > before[i]:
                before[i], moved[i] = job.written(i), now
            still = max(still, now - moved[i])
        if len(job.left) > left and back is None:
            if kind == "host killed":
                cluster("start", host)
            elif kind == "link cut":
                cluster("join", host)
            back = time.monotonic()
        return any(i == island for _, i in job.entered[entered:])

    done = job.wait(is_in, 60)
    wrong = []
    if not done:
        raise RuntimeError(f"after {kind} of island {island} it does not come in again")
    said = next(t for t, i in job.left[left:] if i == island) - struck
    returned = next(t for t, i in job.entered[entered:] if i == island) - back
    if still > STILL_S:
        wrong.append(f"the others stood still for {still:.1f} s")
    if returned > BACK_S:
        wrong.append(f"more than {BACK_S} s until it was in")
    if others_out := {i for _, i in job.left[left:]} - {island}:
        wrong.append(f"left out too: {sorted(others_out)}")
    print(f"{kind:<13}island {island}: left out after {said:5.2f} s, the others' longest step {still:5.2f} s, in again {returned:5.2f} s later"
          f"{'  WRONG: ' + '; '.join(wrong) if wrong else ''}", flush=True)
    return {"kind": kind, "said_s": said, "still_s": still, "in_s": returned, "wrong": wrong}


def weights(folder):
    steps = sorted(os.listdir(os.path.join(folder, "checkpoint")))
    last = [s for s in steps if re.fullmatch(r"step-\d+", s)][-1]
    with open(os.path.join(folder, "checkpoint", last, "model.safetensors"), "rb") as f:
        return last, hashlib.sha256(f.read()).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    args = parser.parse_args()
    require_cluster()
    print(f"seed {args.seed}", flush=True)
    rng = random.Random(args.seed)
    results, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        recipe = write_recipe(folder, "islands", dim=64, layers=2, vocab=512, seq=64)
        out = os.path.join(folder, "out")
        os.mkdir(out)
        # Long enough for all failures; the rest is taken in the end.
        flags = [*degrees(data_parallel_shard=RANKS_A_HOST), "--training.global_batch_size", str(4 * HOSTS * RANKS_A_HOST), "--metrics.log_freq", "1",
                 "--training.steps", "1000000", "--lr_scheduler.total_steps", "1000000", "--comm.train_timeout_seconds", str(TIMEOUT_S),
                 "--fault_tolerance.enable", "true", "--fault_tolerance.semi_sync_method", "local_sgd", "--fault_tolerance.group_size", str(HOSTS),
                 "--fault_tolerance.sync_steps", str(SYNC), "--job.dump_folder", out, "--checkpoint.enable", "true",
                 "--checkpoint.interval", str(SYNC), "--checkpoint.keep_latest_k", "3", "--checkpoint.last_save_model_only", "false"]
        job = Job(os.path.abspath(args.lockstep), recipe, out, flags)
        try:
            if not job.go_on(60):
                raise RuntimeError("the islands do not train")
            for _ in range(args.rounds):
                for kind in rng.sample(KINDS, len(KINDS)):
                    results.append(fail_once(job, kind, rng.randrange(HOSTS), rng))
            if not job.go_on(60):
                wrong.append("not all islands go on")
        except RuntimeError as error:
            wrong.append(str(error))
        job.process.send_signal(signal.SIGTERM)
        try:
            job.process.wait(60)
        except subprocess.TimeoutExpired:
            job.process.kill()
            wrong.append("launch does not end")
        if not wrong:
            # From checkpoints of several steps on to one meeting.
            folders = [out] + [os.path.join(out, f"island.{i}") for i in range(1, HOSTS)]
            last = max(int(weights(f)[0][5:]) for f in folders)
            end = (last // SYNC + 2) * SYNC
            done = launch(os.path.abspath(args.lockstep), out, ["train", recipe, *flags, "--training.steps", str(end)])
            _, said = done.communicate()
            if done.returncode != 0:
                wrong.append(f"the run to step {end} ends with code {done.returncode}: {said[-2000:]}")
            elif len(all_ends := {weights(f) for f in folders}) != 1:
                wrong.append(f"the islands differ after the last meeting: {all_ends}")
            else:
                print(f"all islands have the same weights after step {end}")
        for text in wrong:
            print(f"WRONG: {text}")
        if wrong:
            print("".join(job.text)[-6000:], flush=True)
    print(f"\n{'failure':<14}{'times':>6}{'left out after: median, most s':>32}{'others’ longest step: median, most s':>38}{'in again after: median, most s':>32}{'wrong':>7}")
    for kind in KINDS:
        of = [r for r in results if r["kind"] == kind]
        if of:
            pair = lambda key: f"{statistics.median(r[key] for r in of):.2f} {max(r[key] for r in of):>8.2f}"
            print(f"{kind:<14}{len(of):>6}{pair('said_s'):>32}{pair('still_s'):>38}{pair('in_s'):>32}{sum(bool(r['wrong']) for r in of):>7}")
    sys.exit(1 if wrong or any(r["wrong"] for r in results) else 0)


if __name__ == "__main__":
    main()
