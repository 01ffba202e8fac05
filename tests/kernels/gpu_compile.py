#!/usr/bin/env python3
"""Kernels of GPUs, compiled by nvcc: no kernel spills registers or has a stack, none takes more registers than here, and where a
kernel does several elements at once its accesses to global memory have 16 bytes.

    gpu_compile.py SOURCE_FOLDER [--arch 80 90a] [--nvcc NVCC]

Kernels were tuned for 80 and 90a. Others get the PTX of 80, as in the module: it must compile without warnings, and a kernel may spill a
few registers; how many do is printed.

Exit code 77: there is no nvcc, or one before CUDA 13, with which these limits were not taken."""
import argparse
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

TUNED = ("80", "90a")
MOST_SPILLED = 96  # bytes of a thread, elsewhere
REGISTERS = {"norm": 160, "columns": 128, "update": 80, "elementwise": 64, "tokens": 128, "loss": 48, "quantize": 64, "movement": 80, "any_type": 80,
             "attention": 255, "attention_backward": 255, "attention_plain": 255}
# Kernels that do eight elements at once; and how many accesses of fewer than 16 bytes each file's may have: a row's or a step's
# scalars, positions and documents, sums in float, elements that are left at the end. Quantized blocks have an odd number of bytes.
WIDE = re.compile(r"kernelI\w*Li8E|attention(_backward)?_kernel")
NARROW = {"norm": 22, "columns": 5, "update": 29, "elementwise": 9, "tokens": 10, "loss": 7, "quantize": None, "movement": None, "any_type": None,
          "attention": 26, "attention_backward": 24, "attention_plain": 23}


SPILLING = []  # architecture, kernel, bytes


def compile_one(nvcc, root, source, arch, folder):
    out = os.path.join(folder, f"{source.stem}.{arch}")
    flags = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", f"-I{root}/src", f"-gencode=arch=compute_{arch if arch in TUNED else 80},code=sm_{arch}"]
    run = subprocess.run([nvcc, *flags, "-Xptxas", "-v", "-cubin", "--keep", "--keep-dir", folder, str(source), "-o", out + ".cubin"],
                         capture_output=True, text=True)
    if run.returncode != 0 or "warning" in run.stderr:
        sys.exit(f"{source}, sm_{arch}:\n{run.stdout}{run.stderr}")
    ptx = next(pathlib.Path(folder).glob(f"{source.stem}*.ptx")).read_text()
    return run.stderr, ptx


def faults(name, arch, log, ptx):
    kernels = re.findall(r"Compiling entry function '(\S+)'.*?\n.*?\n\s+(\d+) bytes stack frame, (\d+) bytes spill stores.*?\n.*?Used (\d+) registers", log)
    if not kernels:
        yield f"{name}, sm_{arch}: no kernel was compiled"
    for kernel, stack, spills, registers in kernels:
        if int(stack) + int(spills) > 0:
            if arch not in TUNED:
                SPILLING.append((arch, kernel, int(spills)))
            if arch in TUNED or max(int(stack), int(spills)) > MOST_SPILLED:
                yield f"{kernel}, sm_{arch}: {stack} bytes of stack, {spills} of spills"
        if arch in TUNED and int(registers) > REGISTERS[name]:
            yield f"{kernel}, sm_{arch}: {registers} registers; at most {REGISTERS[name]}"
    for kernel, body in re.findall(r"\.entry (\S+?)\(.*?\{(.*?)\n\}", ptx, flags=re.S):
        if NARROW[name] is None or not WIDE.search(kernel):
            continue
        accesses = re.findall(r"\b(?:ld|st)\.global\S*|cp\.async\.c[ag]\.\S*", body)  # .cg always has 16 bytes
        widths = collections.Counter("wide" if ".v4" in line or ".cg" in line else "narrow" for line in accesses)
        if widths["wide"] == 0:
            yield f"{kernel}, sm_{arch}: no access has 16 bytes"
        if arch in TUNED and widths["narrow"] > NARROW[name]:
            yield f"{kernel}, sm_{arch}: {widths['narrow']} accesses have fewer than 16 bytes; at most {NARROW[name]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root")
    parser.add_argument("--arch", nargs="+", default=["80", "90a"])
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    args = parser.parse_args()
    if not os.path.exists(args.nvcc):
        print(f"no nvcc at {args.nvcc}: not tested")
        sys.exit(77)
    release = re.search(r"release (\d+)", subprocess.run([args.nvcc, "--version"], capture_output=True, text=True).stdout)
    if not release or int(release[1]) < 13:
        print(f"{args.nvcc} is older than CUDA 13: not tested")
        sys.exit(77)
    known = subprocess.run([args.nvcc, "--list-gpu-arch"], capture_output=True, text=True).stdout.split()
    for arch in [a for a in args.arch if f"compute_{a.rstrip('a')}" not in known]:
        print(f"{args.nvcc} does not know sm_{arch}: not compiled")
        args.arch.remove(arch)
    sources = sorted(pathlib.Path(args.root, "src/kernels/gpu").glob("*.cu"))
    jobs = [(source, arch) for source in sources for arch in args.arch]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        def run(job):
            source, arch = job
            own = os.path.join(folder, f"{source.stem}_{arch}")
            os.mkdir(own)
            return list(faults(source.stem, arch, *compile_one(args.nvcc, args.root, source, arch, own)))
        found = [fault for one in pool.map(run, jobs) for fault in one]
    for arch in sorted({a for a, _, _ in SPILLING}):
        of_arch = [(kernel, spilled) for a, kernel, spilled in SPILLING if a == arch]
        print(f"sm_{arch}: {len(of_arch)} kernels spill, at most {max(spilled for _, spilled in of_arch)} bytes:")
        print("\n".join(f"    {spilled:3} {kernel}" for kernel, spilled in sorted(of_arch)))
    print("\n".join(found) or f"{len(sources)} files, {len(args.arch)} architectures: nothing found")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
