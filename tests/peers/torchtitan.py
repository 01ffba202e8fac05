#!/usr/bin/env python3
"""torchtitan's own recipes (v0.2.2, TOML) through `lockstep check`.

    torchtitan.py LOCKSTEP DIR     reads every recipe under DIR (files *.toml with a table [model]), prints a line a file

A file without float8, fault tolerance and context parallelism, of a dense model that Lockstep has, must be accepted. Any other
must be refused with all of its techniques in one message, and with nothing else.
"""

import json
import pathlib
import subprocess
import sys
import tomllib

DENSE = {"llama3", "qwen3"}
CLUSTER = pathlib.Path(__file__).resolve().parents[2] / "clusters" / "h100.toml"


def wanted(recipe):
    """The techniques that a refusal must name; none: the recipe must be accepted."""
    model, parallel = recipe["model"], recipe.get("parallelism", {})
    out = set()
    if model.get("name", "llama3") not in DENSE:
        out.add("model")
    if "moe" in model.get("flavor", "") or "-A" in model.get("flavor", ""):
        out.add("experts")
    if any("float8" in c for c in model.get("converters", [])):
        out.add("float8")
    if recipe.get("fault_tolerance", {}).get("enable"):
        out.add("fault tolerance")
    if parallel.get("context_parallel_degree", 1) > 1:
        out.add("context parallelism")
    return out


def check(lockstep, path):
    # As few ranks as hold the model: a layout of so many need not exist for all.
    for ranks in (8, 16, 32, 64, 128, 256, 512):
        done = subprocess.run([lockstep, COMMAND, path, "--json", "--ranks", str(ranks), "--cluster", CLUSTER],
                              capture_output=True, text=True, timeout=300)
        answer = json.loads(done.stdout)
        error = answer.get("error", {})
        too_large = error.get("id") == "check.does_not_fit" or answer.get("fits") is False and not error
        if done.returncode == 0 or not too_large:
            return done, error, ranks
    return done, error, ranks


COMMAND = "check"


def main():
    lockstep, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    files = []
    for path in sorted(folder.rglob("*.toml")):
        recipe = tomllib.loads(path.read_text())
        if "model" in recipe and "job" in recipe:
            files.append((path, recipe))
    if not files:
        sys.exit(f"{folder}: no recipe in TOML. torchtitan has none since v0.2.2: give a checkout of that tag")
    failed = accepted = 0
    for path, recipe in files:
        done, error, ranks = check(lockstep, path)
        want, name = wanted(recipe), path.relative_to(folder)
        lines = [line.strip() for line in error.get("message", "").splitlines() if line.startswith("  ")]
        named = {line.split(" (")[0] for line in lines}
        if done.returncode == 0:
            good, said = not want, f"accepted on {ranks} ranks"
        else:
            good = error.get("id") == "recipe.not_available" and bool(want) and (want - {"model"}) <= named
            said = "refused: " + ("; ".join(sorted(named)) or error.get("message", done.stderr))
        one_line = done.stderr.count("ignored: ") <= 1
        accepted += done.returncode == 0
        failed += not (good and one_line)
        print(f"{'ok  ' if good and one_line else 'FAIL'} {name}: {said}")
    print(f"{len(files)} recipes, {accepted} accepted, {len(files) - accepted} refused, {failed} not as expected")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
