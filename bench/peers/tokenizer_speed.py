#!/usr/bin/env python3
"""Encoding text: Lockstep beside tiktoken with the same merges, alternately, on the same threads. `make bench-tokenizers` calls it.

tokenizer_speed.py TOKENIZER_BENCH [--threads N] [--rounds N] [--mb N] [--text GLOB ...]

Both count tokens of documents that lie in memory. tiktoken's ranks are the ids of the tokenizer.json, its pattern is that of the Split.
"""
import argparse
import glob
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import tiktoken

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "peers"))
import tokenizer_families as families  # noqa: E402

TEXT = ["/usr/include/**/*.h", "/usr/share/doc/**/*", "/usr/lib/python3/**/*.py", "/usr/local/lib/**/*.py", "/usr/lib/gcc/**/*.h"]
CASES = {"Llama 3.2, ignore_merges": "Llama 3", "Qwen 2": "Qwen 2"}

parser = argparse.ArgumentParser()
parser.add_argument("tokenizer_bench")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--mb", type=int, default=50)
parser.add_argument("--text", nargs="*", default=TEXT)
parser.add_argument("--packages", default="build/tokenizer_packages")
args = parser.parse_args()


def documents():
    out, size = [], 0
    for pattern in args.text:
        for name in sorted(glob.glob(pattern, recursive=True)):
            if size >= args.mb * 1e6:
                return out, size
            if os.path.isfile(name):
                try:
                    text = pathlib.Path(name).read_text()
                except (UnicodeDecodeError, OSError):
                    continue
                out.append(text)
                size += len(text.encode())
    if size < args.mb * 1e6:
        print(f"only {size / 1e6:.0f} MB of text were found: name more with --text")
    return out, size


def tiktoken_of(file):
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in kept] + [chr(256 + i) for i in range(256 - len(kept))]
    byte_of = dict(zip(letters, kept + [b for b in range(256) if b not in kept]))
    ranks = {bytes(byte_of[c] for c in token): i for token, i in file["model"]["vocab"].items() if all(c in byte_of for c in token)}
    split = next(s for s in file["pre_tokenizer"]["pretokenizers"] if s["type"] == "Split")
    return tiktoken.Encoding("same", pat_str=split["pattern"]["Regex"], mergeable_ranks=ranks, special_tokens={})


texts, size = documents()
packages = families.Packages(args.packages)
print(f"{len(texts)} documents, {size / 1e6:.0f} MB, {args.threads} threads, {args.rounds} rounds each, alternately; median [least to most]\n")
slower = False
for family, source, package, make in families.FAMILIES:
    if family not in CASES:
        continue
    file = make(packages, package)
    peer = tiktoken_of(file)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, data = pathlib.Path(folder) / "tokenizer.json", pathlib.Path(folder) / "documents"
        tokenizer.write_text(json.dumps(file))
        data.write_bytes(b"".join(struct.pack("<I", len(b)) + b for b in (t.encode() for t in texts)))
        command = [args.tokenizer_bench, str(tokenizer), str(data), str(args.threads)]
        ours = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        seconds = {"Lockstep": [], "tiktoken": []}
        for _ in range(args.rounds):
            ours.stdin.write("\n")
            ours.stdin.flush()
            took, tokens = ours.stdout.readline().split()
            seconds["Lockstep"].append(float(took))
            start = time.perf_counter()
            peer_tokens = sum(map(len, peer.encode_ordinary_batch(texts, num_threads=args.threads)))
            seconds["tiktoken"].append(time.perf_counter() - start)
        ours.stdin.close()
        ours.wait(timeout=60)
    for name, runs in seconds.items():
        rates = sorted(size / s / 1e6 for s in runs)
        print(f"{CASES[family]:8} {name:9} {statistics.median(rates):7.1f} MB/s [{rates[0]:.1f} to {rates[-1]:.1f}]")
    ratio = statistics.median(seconds["tiktoken"]) / statistics.median(seconds["Lockstep"])
    print(f"{CASES[family]:8} Lockstep is {ratio:.2f} times as fast; tokens {int(tokens):,} and {peer_tokens:,}\n", flush=True)
    slower = slower or ratio < 1
sys.exit(1 if slower else 0)
