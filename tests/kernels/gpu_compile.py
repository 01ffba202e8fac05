#!/usr/bin/env python3
"""Kernels of GPUs, compiled by nvcc: no kernel spills registers or has a stack, none takes more registers than here, and where a
kernel does several elements at once its accesses to global memory have 16 bytes. Of kernels whose speed was worked out by their
instructions, registers and the instructions of the loop for 8 elements are here one by one.

    gpu_compile.py SOURCE_FOLDER [--arch 80 90a] [--nvcc NVCC] [--files norm loss ..] [--print]

Kernels were tuned for 80 and 90a. Others get the PTX of 80, as in the module: it must compile without warnings, and a kernel may spill a
few registers; how many do is printed.

--print: what the kernels of LOOPS have. Exit code 77: there is no nvcc, or one before CUDA 13, with which these limits were not taken."""
import argparse
import collections
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

TUNED = ("80", "90a")
MOST_SPILLED = 96  # bytes of a thread, elsewhere
REGISTERS = {"norm": 92, "norm_backward": 148, "columns": 64, "update": 80, "elementwise": 80, "swiglu_amax": 80, "tokens": 128, "loss": 64, "quantize": 64, "float8": 64, "float8_blocks": 80, "float8_factors": 64,
             "movement": 80, "any_type": 80, "attention": 255, "attention_merge": 48, "attention_backward": 255, "attention_plain": 255}
# Kernels that do eight or 16 elements at once; and how many accesses of fewer than 16 bytes each file's may have: a row's or a step's
# scalars, positions and documents, sums in float, elements that are left at the end. Quantized blocks have an odd number of bytes.
WIDE = re.compile(r"kernelI\w*Li(8|16)E|of_pieces_kernel|attention(_backward)?_kernel")
NARROW = {"norm": 22, "norm_backward": 22, "columns": 5, "update": 35, "elementwise": 9, "swiglu_amax": 4, "tokens": 10, "loss": 8, "float8": 8, "float8_blocks": 8, "float8_factors": 8, "quantize": None, "movement": None,
          "any_type": None, "attention": 26, "attention_merge": 3, "attention_backward": 24, "attention_plain": 23}
# A kernel by its name, as c++filt has it without namespaces: its registers, how often its longest loop does 8 elements, and the
# most instructions of that loop for 8 elements, by architecture; where a number follows, of the loop before which so many are
# longer. A loop over rows includes the sums over a row and its barrier.
LOOPS = [
    ("norm", r"norm_of_pieces_kernel<Pieces<128, 1, 128>, false, false, Bf16, Bf16, Bf16, NoAmax>", 40, 1, {"80": 134, "90a": 142}),
    ("norm", r"norm_of_pieces_kernel<Pieces<128, 1, 128>, false, true, Bf16, Bf16, Bf16, NoAmax>", 40, 1, {"80": 180, "90a": 180}),
    ("norm", r"norm_of_pieces_kernel<Pieces<256, 1, 256>, false, false, Bf16, Bf16, Bf16, NoAmax>", 40, 1, {"80": 141, "90a": 146}),
    ("norm", r"norm_of_pieces_kernel<Pieces<256, 1, 256>, false, true, Bf16, Bf16, Bf16, NoAmax>", 40, 1, {"80": 184, "90a": 184}),
    ("norm", r"norm_of_pieces_kernel<Pieces<(256|512), 2, \d+>, false, false, Bf16, Bf16, Bf16, NoAmax>", 64, 2, {"80": 108, "90a": 110}),
    ("norm", r"norm_of_pieces_kernel<Pieces<(256|512), 2, \d+>, false, true, Bf16, Bf16, Bf16, NoAmax>", 64, 2, {"80": 139, "90a": 142}),
    ("norm", r"norm_of_pieces_kernel<Pieces<(128|256), 1, \d+>, true, false, Bf16, Bf16, Bf16, NoAmax>", 48, 1, {"80": 219, "90a": 226}),
    ("norm_backward", r"norm_backward_of_pieces_kernel<Pieces<(128|256), 1, \d+>, false, false, Bf16, Bf16>", 64, 1, {"80": 225, "90a": 229}),
    ("norm_backward", r"norm_backward_of_pieces_kernel<Pieces<128, 1, 128>, false, true, Bf16, Bf16>", 72, 1, {"80": 240, "90a": 242}),
    ("norm_backward", r"norm_backward_of_pieces_kernel<Pieces<256, 1, 256>, false, true, Bf16, Bf16>", 64, 1, {"80": 246, "90a": 247}),
    ("norm_backward", r"norm_backward_of_pieces_kernel<Pieces<(256|512), 2, \d+>, false, false, Bf16, Bf16>", 96, 2, {"80": 188, "90a": 188}),
    ("norm_backward", r"norm_backward_of_pieces_kernel<Pieces<(256|512), 2, \d+>, false, true, Bf16, Bf16>", 124, 2, {"80": 206, "90a": 206}),
    ("norm_backward", r"norm_backward_of_pieces_kernel<Pieces<(128|256), 1, \d+>, true, (true|false), Bf16, Bf16>", 80, 1, {"80": 306, "90a": 310}),
    ("norm_backward", r"norm_backward_of_pieces_kernel<Pieces<256, 2, 256>, true, (true|false), Bf16, Bf16>", 128, 2, {"80": 247, "90a": 250}),
    ("norm_backward", r"norm_backward_of_pieces_kernel<Pieces<256, 1, 256>, false, (true|false), float, Bf16>", 96, 1, {"80": 228, "90a": 232}),
    ("columns", r"add_columns_kernel", 32, 1, {"80": 32, "90a": 32}),  # a loop of 8 rows of a column
    ("columns", r"sum_rows_kernel<8, Rows<Bf16>>", 42, 4, {"80": 27, "90a": 27}),
    ("columns", r"sum_rows_kernel<8, GeluRows<Bf16>>", 48, 1, {"80": 176, "90a": 176}),
    ("elementwise", r"each_kernel<8, InWholeChunks<SwiGluPackedOf<Bf16>>>", 32, 1, {"80": 96, "90a": 95}),
    ("elementwise", r"each_kernel<8, InWholeChunks<SwiGluPackedBackwardOf<Bf16, false>>>", 32, 1, {"80": 159, "90a": 158}),
    ("elementwise", r"each_kernel<8, SwiGluOf<Bf16>>", 32, 1, {"80": 86, "90a": 86}),
    ("elementwise", r"each_kernel<8, SwiGluBackwardOf<Bf16, false>>", 32, 1, {"80": 145, "90a": 145}),
    ("elementwise", r"each_kernel<8, InWholeChunks<SwiGluPackedBackwardOf<Bf16, true>>>", 32, 1, {"80": 186, "90a": 186}),  # and its result
    ("elementwise", r"each_kernel<8, GeluBackwardOf<Bf16>>", 32, 1, {"80": 145, "90a": 145}),
    ("elementwise", r"each_kernel<8, InWholeChunks<BiasOf<Bf16, Gelu<Bf16>>>>", 32, 1, {"80": 121, "90a": 120}),
    ("loss", r"cross_entropy_gradient_kernel<(512|1024), 8, Bf16, Bf16>", 64, 4, {"80": 51, "90a": 51}),  # over a row for its sum
    ("loss", r"cross_entropy_gradient_kernel<(512|1024), 8, Bf16, Bf16>", 64, 2, {"80": 44, "90a": 44}, 2),  # over a row for the gradient
    ("update", r"squares_kernel<8>", 42, 4, {"80": 24, "90a": 25}),
    ("update", r"adamw_kernel<8, float, float>", 64, 1, {"80": 650, "90a": 642}),
    ("update", r"adamw_kernel<8, float, Bf16>", 64, 1, {"80": 655, "90a": 645}),
    ("tokens", r"embedding_backward_kernel<8, Bf16>", 64, 1, {"80": 420, "90a": 470}),  # of 2,048 tokens
]


SPILLING = []  # architecture, kernel, bytes


def instructions_of_loops(cubin, arch):
    """Of each kernel: the instructions of each loop, from where a branch leads back to, to that branch; longest first. An instruction has
    16 bytes; a branch (BRA) has 0x947 in its lowest 12 bits. Its distance, in units of 4 bytes, is in the bits from 34 on; from sm_90 on the
    lowest 8 bits of it are in bits 16 to 23."""
    data = pathlib.Path(cubin).read_bytes()
    (sections,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + i * size) for i in range(count)]
    loops = {}
    for name_at, _, _, _, begin, length, *_ in headers:
        at = headers[names][4] + name_at
        name = data[at : data.index(b"\0", at)].decode()
        if not name.startswith(".text."):
            continue
        found = []
        for here in range(0, length, 16):
            word = int.from_bytes(data[begin + here : begin + here + 16], "little")
            if word & 0xFFF != 0x947:
                continue
            distance = word >> 34 & (1 << 48) - 1
            if distance >> 47:
                distance -= 1 << 48
            if int(re.match(r"\d+", arch)[0]) >= 90:
                distance = distance << 8 | word >> 16 & 0xFF
            target = here + 16 + 4 * distance
            if target < here:
                found.append((here - target) // 16 + 1)
        loops[name[len(".text.") :]] = sorted(found, reverse=True)
    return loops

def compile_one(nvcc, root, source, arch, folder):
    out = os.path.join(folder, f"{source.stem}.{arch}")
    flags = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", f"-I{root}/src", f"-gencode=arch=compute_{arch if arch in TUNED else 80},code=sm_{arch}"]
    run = subprocess.run([nvcc, *flags, "-Xptxas", "-v", "-cubin", "--keep", "--keep-dir", folder, str(source), "-o", out + ".cubin"],
                         capture_output=True, text=True)
    if run.returncode != 0 or "warning" in run.stderr:
        sys.exit(f"{source}, sm_{arch}:\n{run.stdout}{run.stderr}")
    ptx = next(pathlib.Path(folder).glob(f"{source.stem}*.ptx")).read_text()
    return run.stderr, ptx, instructions_of_loops(out + ".cubin", arch)

def plain_names(names):
    """What c++filt makes of them, without namespaces and arguments."""
    plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    return [re.sub(r"lockstep::|kernels::|gpu::|\(anonymous namespace\)::|^void |\((?!anonymous).*", "", re.sub(r"> (?=>)", ">", name)) for name in plain]

def faults(name, arch, log, ptx, loops, shows):
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
    measured = {plain: (int(k[3]), loops[k[0]]) for k, plain in zip(kernels, plain_names([k[0] for k in kernels]))}
    for pattern, most_registers, times, bars, *longer in (row[1:] for row in LOOPS if row[0] == name and arch in TUNED):
        found = {plain: numbers for plain, numbers in measured.items() if re.fullmatch(pattern, plain)}
        if not found:
            yield f"{name}, sm_{arch}: no kernel is {pattern}"
        for plain, (registers, all_loops) in found.items():
            rank = longer[0] if longer else 0
            instructions = all_loops[rank] if rank < len(all_loops) else 0
            if shows:
                print(f"sm_{arch} {registers:4} registers {instructions / times:6.1f} instructions  {plain}", flush=True)
            if registers > most_registers:
                yield f"{plain}, sm_{arch}: {registers} registers; at most {most_registers}"
            if instructions == 0 or instructions > bars[arch] * times:
                yield f"{plain}, sm_{arch}: {instructions / times:.1f} instructions for 8 elements; at most {bars[arch]}, and a loop"
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
    parser.add_argument("--files", nargs="+", help="without .cu; all")
    parser.add_argument("--print", action="store_true")
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
    sources = sorted(s for s in pathlib.Path(args.root, "src/kernels/gpu").glob("*.cu") if not args.files or s.stem in args.files)
    jobs = [(source, arch) for source in sources for arch in args.arch]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        def run(job):
            source, arch = job
            own = os.path.join(folder, f"{source.stem}_{arch}")
            os.mkdir(own)
            return list(faults(source.stem, arch, *compile_one(args.nvcc, args.root, source, arch, own), args.print))
        found = [fault for one in pool.map(run, jobs) for fault in one]
    for arch in sorted({a for a, _, _ in SPILLING}):
        of_arch = [(kernel, spilled) for a, kernel, spilled in SPILLING if a == arch]
        print(f"sm_{arch}: {len(of_arch)} kernels spill, at most {max(spilled for _, spilled in of_arch)} bytes:")
        print("\n".join(f"    {spilled:3} {kernel}" for kernel, spilled in sorted(of_arch)))
    print("\n".join(found) or f"{len(sources)} files, {len(args.arch)} architectures: nothing found")
    sys.exit(1 if found else 0)

if __name__ == "__main__":
    main()
