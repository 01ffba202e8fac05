#!/usr/bin/env bash
# Training in two processes of mpirun under valgrind, in some layouts, on plain loops and on the fast kernels (valgrind knows AVX2):
# no read of what was never written, none outside of what was allocated. Any finding is the exit code 9 of its process.
# What lies in a rank's arena is zero when it begins, so that of tensors this sees less than runtime.debug_fill does.
# Arguments: the lockstep binary.
set -euo pipefail

binary=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

own=""  # Open MPI's suppressions; another MPI has none
for file in /usr/share/openmpi/openmpi-valgrind.supp "$(dirname "$(command -v mpirun)")/../share/openmpi/openmpi-valgrind.supp"; do
    [ -e "$file" ] && own="--suppressions=$file"
done

# Open MPI would show a stack at some signals, SIGRT32 too, which valgrind keeps for itself: at SIGABRT alone, then.
train() {
    echo "train $*"
    if ! mpirun --allow-run-as-root --oversubscribe --bind-to none -mca mpi_yield_when_idle 1 -mca opal_signal 6 -n 2 \
        valgrind --quiet --error-exitcode=9 --track-origins=yes --suppressions="$here/openmpi.supp" $own \
        "$binary" train "$here/recipe.toml" "$@" >out.txt 2>err.txt; then
        cat err.txt >&2
        exit 1
    fi
}

train --runtime.kernels reference --parallelism.data_parallel_shard_degree 2
train --runtime.kernels reference --parallelism.data_parallel_shard_degree 2 --training.steps 5  # goes on from the checkpoint
train --job.dump_folder replicas --parallelism.data_parallel_replicate_degree 2 --training.mixed_precision_param bfloat16
train --job.dump_folder tensor --parallelism.tensor_parallel_degree 2 --checkpoint.async_mode async
train --job.dump_folder pipeline --parallelism.pipeline_parallel_degree 2 --parallelism.data_parallel_shard_degree 2
echo "nothing found"
