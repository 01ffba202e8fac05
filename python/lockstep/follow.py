"""Sends what a run logs to Weights & Biases or MLflow, while it runs or afterwards.

    python -m lockstep.follow RUN --wandb PROJECT
    python -m lockstep.follow RUN --mlflow URI

RUN is a run's dump folder. A follower reads metrics.jsonl and events.jsonl there and nothing else, so the run knows nothing of
it and needs no package. It can be stopped and started again at any time, and sends each step once. This file needs the
standard library alone, and of wandb and mlflow the one that is asked for; it also works by itself: python follow.py RUN ...
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any, Optional, Protocol

Line = dict[str, Any]
STATE_FOLDER = ".follow"  # in the run's folder: what each follower has sent


class Sink(Protocol):
    """Where a run goes. `state` is a dict that is kept between two starts of a follower."""

    def open(self, name: str, state: Line) -> None: ...
    def start(self, config: dict[str, str], event: Line) -> None: ...
    def step(self, step: int, values: dict[str, float], time_s: float) -> None: ...
    def event(self, event: Line) -> None: ...
    def close(self, reason: Optional[str]) -> str:  # None: the run goes on; "lost": it has no end, and no job
        ...


class Tail:
    """The objects of a file of JSON lines, from where the last look ended. A line counts once it is whole."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def __iter__(self) -> Iterator[Line]:
        if not self.path.is_file():  # what is no file is not waited for
            return
        with open(self.path, "rb") as file:
            if os.fstat(file.fileno()).st_size < self.offset:
                self.offset = 0  # another file has taken its place
            file.seek(self.offset)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                self.offset += len(raw)
                try:
                    line = json.loads(raw)
                except (ValueError, RecursionError):
                    continue
                if isinstance(line, dict) and isinstance(line.get("step"), int):
                    yield line


def recipe_keys(toml: str) -> dict[str, str]:
    """"section.key" -> value, of a recipe as a run writes it: one key a line."""
    out, section = {}, ""
    for line in toml.splitlines():
        head, key = re.fullmatch(r"\[([^\]]+)\]", line), re.fullmatch(r"([A-Za-z0-9_.-]+) = (.*)", line)
        if head:
            section = head[1]
        elif key:
            out[f"{section}.{key[1]}"] = key[2].strip('"')
    return out


def config_of(start: Line) -> dict[str, str]:
    """The keys of the recipe, and what ran on what, by path: "job/ranks"."""
    out = recipe_keys(start.get("recipe") or "")

    def add(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                add(f"{path}/{name}", inner)
        elif value not in (None, "") and not isinstance(value, list):
            out[path] = str(value)

    for name in ("description", "model", "job", "machine", "build", "plan"):
        add(name, start.get(name))
    return out


def seconds_of(time_text: Any) -> float:
    try:
        return datetime.strptime(time_text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except (TypeError, ValueError):
        return time.time()


def is_held(run: Path) -> bool:
    """Is the job that holds the folder still there, as far as this host can know?"""
    try:
        owner = re.match(r"process (\d+) on (\S+)", (run / ".lock").read_text())
        if not owner:
            return False
        if owner[2] == socket.gethostname():
            os.kill(int(owner[1]), 0)
        return True
    except PermissionError:
        return True
    except OSError:
        return False


class Follower:
    """Reads a run and feeds a sink. `name` tells its state from that of other followers of the run."""

    def __init__(self, run: str | os.PathLike[str], sink: Sink, name: str) -> None:
        self.run = Path(run)
        self.sink = sink
        self.state_file = self.run / STATE_FOLDER / (re.sub(r"[^A-Za-z0-9_.-]", "_", name) + ".json")
        try:
            self.state: Line = json.loads(self.state_file.read_text())
        except (OSError, ValueError):
            self.state = {}
        self.metrics = Tail(self.run / "metrics.jsonl", self.state.get("metrics_bytes", 0))
        self.events = Tail(self.run / "events.jsonl", self.state.get("events_bytes", 0))
        self.sent = self.repeated = 0
        self.reason: Optional[str] = self.state.get("reason")  # of the last end; None: the run goes on
        self.starts = self.state.get("starts", 0)
        sink.open(self.run.resolve().name, self.state)
        self.last_step = int(self.state.get("last_step", 0))  # the sink may know better

    def save(self) -> None:
        self.state.update(metrics_bytes=self.metrics.offset, events_bytes=self.events.offset, last_step=self.last_step,
                          reason=self.reason, starts=self.starts)
        self.state_file.parent.mkdir(exist_ok=True)
        partial = self.state_file.with_suffix(".partial")
        partial.write_text(json.dumps(self.state))
        os.replace(partial, self.state_file)

    def look(self) -> bool:
        """Sends what is new. Whether anything was."""
        any_new = False
        for event in self.events:
            any_new = True
            kind = event.get("event")
            if kind == "start":
                self.starts += 1
                self.reason = None
                self.state["clock_s"] = seconds_of(event.get("time"))
                self.sink.start(config_of(event), event)
            elif kind == "end":
                self.reason = str(event.get("reason"))
            self.sink.event(event)
        lines: list[Line] = []
        for line in self.metrics:
            while lines and lines[-1]["step"] >= line["step"]:  # done again after a resume: as it was done last
                lines.pop()
                self.repeated += 1
            lines.append(line)
        for line in lines:
            any_new = True
            step = line["step"]
            if step <= self.last_step:
                self.repeated += 1
                continue
            values = {k: float(v) for k, v in line.items()
                      if k != "step" and isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)}
            pace_s = values.get("time_metrics/end_to_end(s)", 0.0)
            self.state["clock_s"] = self.state.get("clock_s", time.time()) + pace_s * (step - self.last_step)
            self.sink.step(step, values, self.state["clock_s"])
            self.last_step = step
            self.sent += 1
        if any_new:
            self.save()
        return any_new

    def follow(self, poll_s: float = 1.0, forever: bool = False) -> Optional[str]:
        """Until the run has ended, or its job is gone; the reason of its end."""
        while True:
            held = is_held(self.run)  # before the files: it may end in between
            if self.look():
                continue
            if not forever and (self.reason is not None or not held):
                return self.reason
            time.sleep(poll_s)

    def close(self) -> str:
        where = self.sink.close(self.reason or (None if is_held(self.run) else "lost"))
        self.save()
        return where


class WandbSink:
    """A run of Weights & Biases, with the metrics under their own names, by step."""

    def __init__(self, project: str, offline: bool, folder: str) -> None:
        self.wandb: Any = import_module("wandb")
        self.project, self.mode, self.folder = project, "offline" if offline else None, folder

    def open(self, name: str, state: Line) -> None:
        state.setdefault("id", uuid.uuid4().hex[:8])
        self.run = self.wandb.init(project=self.project, name=name, id=state["id"], resume="allow", mode=self.mode,
                                   dir=self.folder, settings=self.wandb.Settings(silent=True, console="off"))
        if self.run.step > 0:  # what the service has, where it can be asked
            state["last_step"] = max(int(state.get("last_step", 0)), self.run.step - 1)

    def start(self, config: dict[str, str], event: Line) -> None:
        self.run.config.update(config, allow_val_change=True)

    def step(self, step: int, values: dict[str, float], time_s: float) -> None:
        self.run.log(values, step=step)

    def event(self, event: Line) -> None:
        kind = event.get("event")
        if kind == "checkpoint":
            self.run.summary["checkpoint"] = event.get("folder")
        elif kind == "not_counted":
            self.run.summary["steps_not_counted"] = self.run.summary.get("steps_not_counted", 0) + 1
        elif kind == "end":
            self.run.summary["end"] = event.get("reason")
            for name, value in (event.get("summary") or {}).items():
                if isinstance(value, (int, float, str)):
                    self.run.summary[f"summary/{name}"] = value

    def close(self, reason: Optional[str]) -> str:
        where = self.run.url or str(Path(self.run.dir).parent)
        self.run.finish(exit_code=1 if reason in ("failed", "non_finite", "lost") else 0)
        return where


class MlflowSink:
    """A run of MLflow: metrics by step, keys of the first start as parameters, what else happened as tags."""

    def __init__(self, uri: str, experiment: str) -> None:
        entities: Any = import_module("mlflow.entities")
        tracking: Any = import_module("mlflow.tracking")
        self.Metric, self.Param = entities.Metric, entities.Param
        self.client = tracking.MlflowClient(tracking_uri=uri)
        self.uri, self.experiment = uri, experiment

    def open(self, name: str, state: Line) -> None:
        if "id" not in state:
            known = self.client.get_experiment_by_name(self.experiment)
            experiment = known.experiment_id if known else self.client.create_experiment(self.experiment)
            state["id"] = self.client.create_run(experiment, run_name=name).info.run_id
        self.id = state["id"]
        run = self.client.get_run(self.id)
        self.has_params = bool(run.data.params)
        self.client.update_run(self.id, status="RUNNING")
        history = self.client.get_metric_history(self.id, "loss_metrics/global_avg_loss")
        state["last_step"] = max([int(state.get("last_step", 0)), *(m.step for m in history)])

    def start(self, config: dict[str, str], event: Line) -> None:
        if not self.has_params:  # parameters cannot change
            of_run = [self.Param(metric_name(k), v[:500]) for k, v in config.items()]
            for begin in range(0, len(of_run), 100):
                self.client.log_batch(self.id, params=of_run[begin:begin + 100])
            self.has_params = True
        self.client.set_tag(self.id, f"lockstep.start.{event['step']}", event.get("recipe") or "")

    def step(self, step: int, values: dict[str, float], time_s: float) -> None:
        at = int(1000 * time_s)
        self.client.log_batch(self.id, metrics=[self.Metric(metric_name(k), v, at, step) for k, v in values.items()])

    def event(self, event: Line) -> None:
        kind = event.get("event")
        if kind == "checkpoint":
            self.client.set_tag(self.id, "lockstep.checkpoint", str(event.get("folder")))
        elif kind == "end":
            self.client.set_tag(self.id, "lockstep.end", str(event.get("reason")))
            self.client.set_tag(self.id, "lockstep.summary", json.dumps(event.get("summary") or {})[:5000])

    def close(self, reason: Optional[str]) -> str:
        status = {None: "RUNNING", "done": "FINISHED", "failed": "FAILED", "non_finite": "FAILED"}.get(reason, "KILLED")
        if status != "RUNNING":
            self.client.set_terminated(self.id, status)
        return f"{self.uri}, run {self.id}"


def metric_name(name: str) -> str:
    """MLflow takes no brackets and no percent sign: "mfu(%)" becomes mfu_percent, "memory/resident(GiB)" memory/resident_GiB."""
    name = re.sub(r"\(([^)]*)\)", lambda unit: "_" + unit[1].replace("%", "percent"), name)
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", name)


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.follow", description="Sends what a run logs to Weights & Biases or MLflow, while it runs or afterwards.",
        epilog="Example: python -m lockstep.follow outputs/demo --wandb demo")
    parser.add_argument("run", help="a run's dump folder (job.dump_folder)")
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--wandb", metavar="PROJECT", help="a project of Weights & Biases; needs the package wandb")
    to.add_argument("--mlflow", metavar="URI", help="a tracking URI of MLflow, such as http://host:5000 or sqlite:///runs.db; needs the package mlflow")
    parser.add_argument("--offline", action="store_true", help="with --wandb: into files under RUN/wandb, for `wandb sync`")
    parser.add_argument("--experiment", default="lockstep", help="with --mlflow: the experiment (default: lockstep)")
    parser.add_argument("--poll", type=float, default=1.0, metavar="S", help="seconds between two looks at the run (default 1)")
    parser.add_argument("--forever", action="store_true", help="go on after the run has ended, for starts that follow; Ctrl-C ends it")
    args = parser.parse_args(arguments)
    if not args.poll > 0:
        parser.error("--poll: must be above 0")
    run = Path(args.run)
    if not any((run / name).is_file() for name in ("metrics.jsonl", "events.jsonl")):
        print(f"{run}: holds no run: give the job.dump_folder of `lockstep train`, which has metrics.jsonl and events.jsonl",
              file=sys.stderr)
        return 1
    try:
        sink: Sink = WandbSink(args.wandb, args.offline, str(run)) if args.wandb else MlflowSink(args.mlflow, args.experiment)
    except ImportError as missing:
        package = "wandb" if args.wandb else "mlflow"
        print(f"--{package}: the package {package} cannot be loaded ({missing}): pip install {package}", file=sys.stderr)
        return 1
    follower = Follower(run, sink, f"wandb-{args.wandb}" if args.wandb else f"mlflow-{args.mlflow}-{args.experiment}")
    print(f"following {run} from step {follower.last_step + 1}", flush=True)
    try:
        follower.follow(args.poll, args.forever)
    except KeyboardInterrupt:
        pass
    where = follower.close()
    again = f"; {follower.repeated} steps that were done again had been sent" if follower.repeated else ""
    ended = "it goes on" if follower.reason is None and is_held(run) else f"it has ended: {follower.reason or 'no end recorded'}"
    print(f"{follower.sent} steps sent, up to step {follower.last_step}{again}; {ended}\nwritten: {where}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
