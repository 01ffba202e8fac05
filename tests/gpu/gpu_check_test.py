#!/usr/bin/env python3
"""scripts/gpu_check.py on the fake module: every check passes or says why it is skipped, and a run that is too short says what it did
not reach.

    gpu_check_test.py SOURCE LOCKSTEP TESTS     with LOCKSTEP_GPU_MODULE"""
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

source, lockstep, tests = sys.argv[1:]


def check(run, *flags, code=0):
    """Names of checks by result."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, f"{source}/scripts/gpu_check.py", run, "--tiny", "--lockstep", lockstep, "--tests", tests]
        command += ["--clusters", f"{source}/clusters", "--kernels", f"{source}/docs/gpu.md", "--out", out, *flags]
        r = subprocess.run(command, capture_output=True, text=True)
        lines = [json.loads(line) for line in (pathlib.Path(out) / "results.jsonl").read_text().splitlines()]
        table = r.stdout.split("\ncheck ")[1].splitlines()[1:]
        found = collections.defaultdict(list)
        for line in lines:
            found[line["result"]].append(line["check"])
        expected = ", ".join(f"{len(found[what])} {what}" for what in ("passed", "failed", "skipped", "not reached"))
        if r.returncode != code or len(table) != len(lines) + 1 or table[-1] != expected:
            sys.exit(f"{' '.join(command)}\nexit code {r.returncode}\n{r.stdout}{r.stderr}")
        for row, line in zip(table, lines):
            assert row.startswith(line["check"]) and f" {line['result']}" in row, row
            assert line["result"] in ("passed", "not reached") or line["why"], line
        return found


right = check("right", "--seconds", "400")
assert not right["failed"] and not right["not reached"], right
for name in ("attention backward in parts", "context attention", "context gather", "context heads, ring", "context ring in parts", "gpt2 without epilogues", "llama in float8", "llama in float8, rowwise", "llama in float8, blockwise", "llama in float8, mx", "llama pinned snapshots, graph",
             "ranks on one GPU 3d", "other ops", "trace 162M", "resumed, evaluated, sampled"):
    assert name in right["passed"], (name, right)
for name in ("peers fsdp", "peers async_tp_4"):  # need a GPU
    assert name in right["skipped"] or name in right["passed"], (name, right)
for name in ("nccl several queues", "nccl's own sums"):  # need several GPUs, or NCCL 2.31
    assert name in right["skipped"] or name in right["passed"], (name, right)

fast = check("fast", "--only", "pair 162M", "torch.compile 162M", "--seconds", "400")
assert len(fast["passed"]) >= 7 and fast["skipped"] == ["torch.compile 162M"], fast

late = check("right", "--seconds", "2.5")
assert "memory" in late["not reached"] and not late["failed"], late
