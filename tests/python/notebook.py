#!/usr/bin/env python3
"""Runs the cells of docs/lockstep.ipynb from the root of the repository: notebook.py FOLDER_OF_THE_PACKAGE|installed [write]

With `write` what the cells print is stored in the notebook; without it, it must be what the notebook has. Numbers of a cell with
"tolerance" in its metadata may differ by that share. Cells need no Jupyter: each prints its results.
"""

import contextlib
import io
import json
import os
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs/lockstep.ipynb"

NUMBER = re.compile(r"\d+(?:\.\d+)?")


def same(printed, had, tolerance):
    """The same text, and numbers that differ by no more than a share of theirs."""
    if NUMBER.sub("N", printed) != NUMBER.sub("N", had):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(had))
    return all(a == b or abs(float(a) - float(b)) <= tolerance * abs(float(b)) for a, b in pairs)


if sys.argv[1] != "installed":
    sys.path.insert(0, os.path.abspath(sys.argv[1]))
notebook = json.loads(NOTEBOOK.read_text())
os.chdir(ROOT)
with tempfile.TemporaryDirectory() as folder:
    variables = {"__name__": "__main__"}
    tempfile.tempdir = folder  # what the cells write is removed
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"cell {count}", "exec"), variables)
        text = printed.getvalue()
        had = "".join("".join(o["text"]) for o in cell["outputs"])
        tolerance = cell["metadata"].get("tolerance", 0)  # of numbers that differ between processors
        if "write" not in sys.argv:
            assert same(text, had, tolerance), f"cell {count} printed\n{text}the notebook has\n{had}store it: notebook.py FOLDER write"
        cell["execution_count"] = count
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
if "write" in sys.argv:
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
print(f"{count} cells ran")
