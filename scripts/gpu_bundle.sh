#!/bin/sh
# What scripts/gpu_check.sh needs on a machine that has nothing but a driver and Python, as one file:
#     scripts/gpu_bundle.sh build/release build/release/lockstep_gpu_check.tar.xz
# cuBLASLt, NCCL and cuDNN are not in it: PyTorch brings them.
set -e
build=$1 file=$2 most=$((64 << 20))
source=$(cd "$(dirname "$0")/.." && pwd)
module=$build/all_gpus/liblockstep_cuda.so  # for all GPUs: none compiles at the first start
test -f "$module" || { echo "gpu_bundle: there is no $module: build lockstep_cuda_all where CUDA's toolkit is" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bundle=$folder/lockstep_gpu_check
mkdir -p "$bundle/bin" "$bundle/lib" "$bundle/peers"
cp "$build/lockstep" "$module" "$build/tests/lockstep_tests" "$bundle/bin"
strip "$bundle"/bin/*
for library in $(ldd "$bundle"/bin/* | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u); do
    case $(basename "$library") in
        libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libresolv.so* | ld-linux* | libcublas* | libnccl* | libcuda* | libcudart*) ;;
        *) cp -L "$library" "$bundle/lib" ;;
    esac
done
cp "$source/scripts/gpu_check.sh" "$source/scripts/gpu_check.py" "$bundle"
cp -r "$source/clusters" "$source/docs/gpu.md" "$bundle"
cp "$source/bench/peers/peer.py" "$source/bench/peers/model.py" "$source/bench/peers/gpu_kernels.py" "$bundle/peers"
tar -C "$folder" -cJf "$file" lockstep_gpu_check
bytes=$(stat -c %s "$file")
echo "$file: $((bytes >> 20)) MiB"
test "$bytes" -le "$most" || { echo "gpu_bundle: more than $((most >> 20)) MiB" >&2; exit 1; }
