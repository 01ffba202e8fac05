"""python -m lockstep.follow with the packages of Weights & Biases and MLflow themselves, in their offline forms: a run is followed
while it goes on, stopped, continued and killed, and each of its steps arrives once. No network is used.

Arguments: the lockstep binary."""
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time

from mlflow.tracking import MlflowClient
from wandb.proto import wandb_internal_pb2

import small_run

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FOLLOW = [sys.executable, os.path.join(SOURCES, "python", "lockstep", "follow.py")]
WANDB = ("--wandb", "demo", "--offline")
MLFLOW = ("--mlflow", "sqlite:///runs.db")
LOSS = "loss_metrics/global_avg_loss"


def logged(folder):
    """Step -> loss, as the run logged it last."""
    with open(f"{folder}/run/metrics.jsonl") as f:
        return {m["step"]: m[LOSS] for m in map(json.loads, f)}


def follow(folder, to):
    done = subprocess.run([*FOLLOW, "run", *to, "--poll", "0.2"], cwd=folder, check=True, capture_output=True, text=True)
    print(done.stdout, end="")
    return done.stdout


def records(path):
    """The protobuf messages of a .wandb file: blocks of 32 KiB as LevelDB's log has them, behind a header of 7 bytes."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:4] == b":W&B", path
    block, at, parts = 32768, 7, b""
    while at + 7 <= len(data):
        left = block - at % block
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack("<xxxxHB", data[at : at + 7])  # behind a checksum; kinds: 1 whole, 2 first, 3 middle, 4 last
        if kind == 0 or at + 7 + size > len(data):
            return
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def in_wandb(folder):
    """[(step, loss)] of all offline files, in their order, and the keys of the recipe."""
    out, config = [], {}
    root = f"{folder}/run/wandb"
    for name in sorted(n for n in os.listdir(root) if n.startswith("offline-run-")):
        for file in (n for n in os.listdir(f"{root}/{name}") if n.endswith(".wandb")):
            for record in records(f"{root}/{name}/{file}"):
                for update in record.config.update:
                    config[update.key or "/".join(update.nested_key)] = json.loads(update.value_json)
                if record.WhichOneof("record_type") == "history":
                    values = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                    out.append((values["_step"], values[LOSS]))
    return out, config


def in_mlflow(folder):
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/runs.db")
    runs = client.search_runs([client.get_experiment_by_name("lockstep").experiment_id])
    assert len(runs) == 1, runs
    history = client.get_metric_history(runs[0].info.run_id, LOSS)
    return [(m.step, m.value) for m in sorted(history, key=lambda m: m.step)], runs[0]


def require_once(sent, folder, what):
    wanted = logged(folder)
    assert [s for s, _ in sent] == sorted(wanted), f"{what}: {[s for s, _ in sent]}, logged {sorted(wanted)}"
    for step, loss in sent:
        assert abs(loss - wanted[step]) < 1e-9 * abs(wanted[step]), f"{what}: step {step}"


def main():
    lockstep = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        run = small_run.prepare(lockstep, folder)
        train = [lockstep, "train", "r.toml", "--quiet", "--metrics.log_freq", "1", "--checkpoint.interval", "10", "--lr_scheduler.total_steps", "80"]
        # While it goes on: the follower begins as soon as there is something, and ends with the run.
        job = subprocess.Popen([*train, "--training.steps", "40"], cwd=folder, stdout=subprocess.DEVNULL)
        while not os.path.exists(f"{folder}/run/metrics.jsonl"):
            time.sleep(0.01)
        assert "it has ended: done" in follow(folder, MLFLOW)
        assert job.wait() == 0
        assert "40 steps sent, up to step 40; it has ended: done" in follow(folder, WANDB)
        require_once(in_wandb(folder)[0], folder, "wandb")
        require_once(in_mlflow(folder)[0], folder, "mlflow")
        assert in_mlflow(folder)[1].info.status == "FINISHED"
        # Again: nothing is sent twice.
        for to in (MLFLOW, WANDB):
            assert "0 steps sent, up to step 40" in follow(folder, to)
        # The run goes on, is killed after a step that no checkpoint holds, and goes on again: steps are done twice.
        job = subprocess.Popen([*train, "--training.steps", "100000"], cwd=folder, stdout=subprocess.DEVNULL)
        while max(logged(folder)) < 55:
            time.sleep(0.01)
        job.send_signal(signal.SIGKILL)
        job.wait()
        for to in (MLFLOW, WANDB):
            assert "it has ended: no end recorded" in follow(folder, to)
        assert in_mlflow(folder)[1].info.status == "KILLED"
        last = max(logged(folder))
        run(*train[1:], "--training.steps", str(last + 10))
        for to in (MLFLOW, WANDB):
            said = follow(folder, to)
            assert f"up to step {last + 10}; " in said and "it has ended: done" in said, said
            assert last % 10 == 0 or "steps that were done again had been sent" in said, said
        sent, config = in_wandb(folder)
        require_once(sent, folder, "wandb after a kill")
        assert config["optimizer.lr"] == "0.01" and config["job/ranks"] == "2", config
        sent, of_mlflow = in_mlflow(folder)
        require_once(sent, folder, "mlflow after a kill")
        assert of_mlflow.info.status == "FINISHED"
        assert of_mlflow.data.params["optimizer.lr"] == "0.01"
        assert of_mlflow.data.tags["lockstep.end"] == "done"
        assert of_mlflow.data.metrics["memory/resident_GiB"] > 0
        assert of_mlflow.data.tags["lockstep.checkpoint"].endswith(f"step-{last + 10:08}")
    print("followers: every step arrived once")


if __name__ == "__main__":
    main()
