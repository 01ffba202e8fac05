#!/usr/bin/env python3
"""Plans the runs of publications (data/papers.toml) and writes docs/papers.md.

usage: scripts/papers.py LOCKSTEP data/papers.toml docs/papers.md
The tables stand between the lines `<!-- begin tables -->` and `<!-- end tables -->`; all else of the page stays as it is.
"""
import json
import re
import subprocess
import sys
import tomllib

OF_TABLE = ("label", "published", "memory_gib", "recipe")


def plan(lockstep, recipe, keys):
    command = [lockstep, "plan", recipe, "--json"]
    for key, value in keys.items():
        command += ["--" + key, str(value).lower() if isinstance(value, bool) else str(value)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:  # 1: it does not fit, and is planned
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    out = json.loads(done.stdout)
    if "step_time_s" not in out:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return out


def speed_of_device(p):
    return p["tokens_per_s"] / p["ranks"]


# By measure: a row's planned value, and its two ends; `first` is the plan of the table's first row.
MEASURES = {
    "tokens/s and device": lambda p, first: speed_of_device(p),
    # Megatron's formula counts a forward more than the model's FLOPs where layers are computed again.
    "hardware FLOPs, % of 191.5 TFLOP/s": lambda p, first: 100 * p["mfu"] * 4 / 3,
    "hardware TFLOP/s of a device, of 312": lambda p, first: 312 * p["mfu"] * 4 / 3,
    "speed of a device, % of the first row's": lambda p, first: 100 * speed_of_device(p) / speed_of_device(first),
    "speed of a device, times the first row's": lambda p, first: speed_of_device(p) / speed_of_device(first),
}


def kind_of(keys):
    if keys.get("parallelism.context_parallel_degree", 1) > 1:
        return "with several context ranks"
    return "in float8, on one context rank" if "model.converters" in keys else "without either"


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 10 else f"{value:.1f}"


def error(planned, published):
    return f"{100 * (planned / published - 1):+.1f} %"


def gain(value, first):
    return f"{100 * (value / first - 1):+.1f} %"


def table_lines(table, lockstep):
    of = MEASURES[table["measure"]]
    scaling = "first row" in table["measure"]
    lines = ["", f"### {table['title']}", "", f"Source: {table['source']}. The numbers are {table['measure']}.", "",
             "| | published | planned | error | over the first row: published, planned | memory published, planned, GiB |",
             "|---|---|---|---|---|---|"]
    first, first_published, errors = None, None, []
    for row in table["rows"]:
        published, memory = row.get("published"), row.get("memory_gib")
        shown = number(published) if published else ""
        if first_published is None:
            first_published = published
        published_gain = gain(published, first_published) if published and first_published != published and not scaling else ""
        keys = dict(table.get("keys", {}))
        keys.update({k: v for k, v in row.items() if k not in OF_TABLE})
        p = plan(lockstep, row.get("recipe", table.get("recipe")), keys)
        first = first or p
        planned = of(p, first)
        low, high = planned * p["step_time_s"] / p["step_time_high_s"], planned * p["step_time_s"] / p["step_time_low_s"]
        band = "" if scaling else f" ({number(low)} to {number(high)})"
        if published:
            errors.append((kind_of(keys), abs(planned / published - 1)))
        gains = f"{published_gain}, {gain(planned, of(first, first))}" if published_gain else ""
        needed = f"{memory}, {p['needed_bytes'] / 2**30:.1f}" if memory else f"{p['needed_bytes'] / 2**30:.1f}"
        lines.append(f"| {row['label']} | {shown} | {number(planned)}{band} | {error(planned, published) if published else ''} | {gains} | {needed} |")
    if "leaves_out" in table:
        lines += ["", table["leaves_out"]]
    return lines, errors


def main():
    lockstep, tables, page = sys.argv[1:4]
    with open(tables, "rb") as f:
        data = tomllib.load(f)
    lines, errors = [], []
    for table in data["tables"]:
        more, of_table = table_lines(table, lockstep)
        lines += more
        errors += of_table
    head = ["| published values | planned | mean error | largest |", "|---|---|---|---|"]
    for kind in ["all", *dict.fromkeys(kind for kind, _ in errors)]:
        own = [e for k, e in errors if kind in ("all", k)]
        head.append(f"| {kind} | {len(own)} | {100 * sum(own) / len(own):.1f} % | {100 * max(own):.1f} % |")
    with open(page) as f:
        text = f.read()
    begin, end = "<!-- begin tables -->", "<!-- end tables -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    if not pattern.search(text):
        sys.exit(f"{page}: has no lines {begin} and {end}")
    body = "\n".join([begin, ""] + head + lines + ["", end])
    with open(page, "w") as f:
        f.write(pattern.sub(lambda _: body, text))


main()
