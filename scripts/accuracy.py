#!/usr/bin/env python3
"""Writes the tables of docs/accuracy.md from what `lockstep calibrate` printed.

usage: scripts/accuracy.py CALIBRATED.json UNFITTED.json docs/accuracy.md
The tables stand between lines `<!-- begin NAME -->` and `<!-- end NAME -->`; all else of the page stays as it is.
"""
import json
import math
import re
import sys

MAIN = ["llmf", "kort22", "mtnlg", "lucie", "zerobub", "ornl", "torchtitan", "llama3"]


def percent(value, sign=False):
    return f"{100 * value:{'+' if sign else ''}.1f} %"


def quantile(values, q):
    values = sorted(values)
    at = q * (len(values) - 1)
    below = int(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (at - below) * (values[above] - values[below])


def sources(data):
    fitted = {e["source"]: e for e in data["planned"]}
    left_out = {e["source"]: e for e in data["left_out"]["errors"]}
    one = {e["source"]: e for e in data["one_utilization"]}
    lines = ["| source | runs | median, 90th percentile | bias | rank correlation | left out: median, 90th, bias | one utilization a chip |",
             "|---|---|---|---|---|---|---|"]
    for name in MAIN + sorted(set(fitted) - set(MAIN) - {"all"}) + ["all"]:
        e, x, u = fitted[name], left_out[name], one[name]
        rank = f"{e['rank_correlation']:.2f}" if name != "all" and e["runs"] >= 3 else ""
        lines.append(f"| {name} | {e['runs']} | {percent(e['median'])}, {percent(e['ninetieth'])} | {percent(e['bias'], True)} | {rank} | "
                     f"{percent(x['median'])}, {percent(x['ninetieth'])}, {percent(x['bias'], True)} | "
                     f"{percent(u['median'])}, {percent(u['ninetieth'])} |")
    of_main = [abs(r["ratio"] - 1) for r in data["runs"] if r["ratio"] and r["source"] in MAIN]
    others = [abs(r["ratio"] - 1) for r in data["runs"] if r["ratio"] and r["source"] not in MAIN]
    medians = [left_out[name]["median"] for name in MAIN]
    lines += ["", f"- Main sources ({', '.join(MAIN)}): {len(of_main)} runs, median {percent(quantile(of_main, 0.5))}, "
                  f"90th percentile {percent(quantile(of_main, 0.9))}.",
              f"- Other sources: {len(others)} runs, {percent(quantile(others, 0.5))}, {percent(quantile(others, 0.9))}.",
              f"- Left out: the mean of the main sources' medians is {percent(sum(medians) / len(medians))}.",
              f"- The band covers {percent(data['left_out']['coverage'])} of the runs of left-out sources."]
    return lines


def unfitted(data):
    lines = ["| source | runs | median, 90th percentile | bias | rank correlation | in the band | one utilization a chip |",
             "|---|---|---|---|---|---|---|"]
    one = {e["source"]: e for e in data["one_utilization"]}
    for e in data["planned"]:
        if e["source"] == "all":
            continue
        inside = [abs(math.log(r["ratio"])) <= 1.2816 * r["deviation"] for r in data["runs"] if r["source"] == e["source"]]
        u = one[e["source"]]
        lines.append(f"| {e['source']} | {e['runs']} | {percent(e['median'])}, {percent(e['ninetieth'])} | {percent(e['bias'], True)} | "
                     f"{e['rank_correlation']:.2f} | {percent(sum(inside) / len(inside))} | {percent(u['median'])}, {percent(u['ninetieth'])} |")
    return lines


def choices(data):
    lines = ["| source, cluster, devices, batch | layouts | loss of the layout that is planned fastest | loss of a random one |",
             "|---|---|---|---|"]
    for c in data["choices"]:
        lines.append(f"| {c['of']} | {c['layouts']} | {percent(c['loss'])} | {percent(c['mean_loss'])} |")
    good = sum(c["loss"] <= 0.05 for c in data["choices"])
    mean = sum(c["loss"] for c in data["choices"]) / len(data["choices"])
    lines += ["", f"Within 5 % of the best in {good} of {len(data['choices'])} groups; mean loss {percent(mean)}."]
    return lines


def constants(data):
    lines = ["| file | constant | value | one deviation to each side | runs |", "|---|---|---|---|---|"]
    for c in data["constants"]:
        lines.append(f"| {c['file']} | `{c['key']}` | {c['value']:.3g} | {c['low']:.3g} to {c['high']:.3g} | {c['runs']} |")
    return lines


def not_planned(data):
    why = {}
    for run in data["not_planned"]:
        why.setdefault(run["why"], []).append(run["id"])
    return ["| why | runs |", "|---|---|"] + [f"| {k} | {', '.join(v)} |" for k, v in sorted(why.items(), key=lambda x: -len(x[1]))]


def memory(data):
    by, all_errors = {}, []
    for run in data["runs"]:
        if "memory_ratio" in run:
            by.setdefault((run["source"], "reserved" if run["memory_is_reserved"] else "allocated"), []).append(run["memory_ratio"] - 1)
    lines = ["| source | measured | runs | error: median, 90th percentile | least, most |", "|---|---|---|---|---|"]
    for (source, what), errors in sorted(by.items()):
        sizes = [abs(e) for e in errors]
        all_errors += sizes
        lines.append(f"| {source} | {what} | {len(errors)} | {percent(quantile(sizes, 0.5))}, {percent(quantile(sizes, 0.9))} | "
                     f"{percent(min(errors), True)}, {percent(max(errors), True)} |")
    lines.append(f"| all | | {len(all_errors)} | {percent(quantile(all_errors, 0.5))}, {percent(quantile(all_errors, 0.9))} | |")
    measured = [run for run in data["runs"] if run["measured_s"] > 0]
    misfits = [run["id"] for run in measured if not run["fits"]]
    lines += ["", f"Of {len(measured)} runs with a measured step time, the plan says of {len(misfits)} that they do not fit"
                  f"{': ' + ', '.join(misfits) if misfits else ''}."]
    gone = [run for run in data["runs"] if run.get("out_of_memory")]
    lines.append(f"Of {len(gone)} planned runs that ran out of memory, the plan says of {sum(run['fits'] for run in gone)} that they fit." if gone
                 else "No run that ran out of memory is among the planned ones.")
    return lines


def main():
    with open(sys.argv[1]) as f:
        data = json.load(f)
    with open(sys.argv[2]) as f:
        never_fitted = json.load(f)
    with open(sys.argv[3]) as f:
        page = f.read()
    for name, table in (("sources", sources), ("unfitted", lambda _: unfitted(never_fitted)), ("choices", choices),
                        ("constants", constants), ("not_planned", not_planned), ("memory", memory)):
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
        if not pattern.search(page):
            sys.exit(f"{sys.argv[3]}: has no lines {begin} and {end}")
        text = "\n".join([begin, ""] + table(data) + ["", end])
        page = pattern.sub(lambda _: text, page)
    with open(sys.argv[3], "w") as f:
        f.write(page)


main()
