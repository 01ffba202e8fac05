#!/bin/sh
# Checks and measures Lockstep on a machine with an NVIDIA GPU, in two runs of at most seven minutes each. Runs in a checkout that is
# built, or in the folder that `make gpu-bundle` makes, on a bare machine with a driver and Python; with PyTorch it compares speed, and
# takes cuBLASLt, NCCL and cuDNN from it. The flags are those of gpu_check.py:
#     scripts/gpu_check.sh right --out results
#     scripts/gpu_check.sh fast --out results
set -e
here=$(cd "$(dirname "$0")" && pwd)
if [ -d "$here/bin" ]; then  # a bundle
    binaries=$here/bin tests=$here/bin peer=$here/peers/peer.py clusters=$here/clusters kernels=$here/gpu.md
    libraries=$here/lib:
else
    libraries=
    binaries=$here/../build/release tests=$here/../build/release/tests peer=$here/../bench/peers/peer.py clusters=$here/../clusters kernels=$here/../docs/gpu.md
fi
# The libraries of the vendor that PyTorch brings.
torch=$(python3 -c 'import pathlib, nvidia; print(":".join(str(p) for r in nvidia.__path__ for p in pathlib.Path(r).glob("*/lib")))' 2>/dev/null || true)
export LOCKSTEP_GPU_MODULE="${LOCKSTEP_GPU_MODULE:-$binaries/liblockstep_cuda.so}"
python3 -c 'import torch' 2>/dev/null && with_peer="--peer $peer" || with_peer=
# shellcheck disable=SC2086
exec python3 "$here/gpu_check.py" "$@" --libraries "$libraries$torch:$LD_LIBRARY_PATH" --lockstep "$binaries/lockstep" --tests "$tests/lockstep_tests" --clusters "$clusters" --kernels "$kernels" $with_peer
