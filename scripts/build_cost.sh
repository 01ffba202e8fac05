#!/usr/bin/env bash
# build_cost.sh JOBS [RUNS]: what a first build costs, without ccache, in a folder that is removed afterwards. Prints for each run
# the core-seconds (user + sys) and the seconds of the program as `make demo` builds it, and of what `make test` adds; then the
# objects of the last run that took longest.
set -euo pipefail
jobs=${1:-$(nproc)} runs=${2:-1}
root=$(dirname "$(dirname "$(realpath "$0")")")
export CCACHE_DISABLE=1 TIMEFORMAT='%U %S %R'
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cost() {  # NAME COMMAND...: runs it quietly, and prints its line
    local name=$1 times
    shift
    times=$( { time "$@" >"$folder/log" 2>&1; } 2>&1) || { tail -n 30 "$folder/log" >&2; exit 1; }
    echo "$times" | awk -v name="$name" '{ printf "%-24s %6.0f core-seconds %6.0f s\n", name, $1 + $2, $3 }'
}

configure() {  # INSTRUCTION_SETS
    cmake -S "$root" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_ISA="$1" >"$folder/log" 2>&1 ||
        { cat "$folder/log" >&2; exit 1; }
}

echo "$(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg), $jobs jobs"
for run in $(seq "$runs"); do
    rm -rf "$folder/build"
    configure native
    cost "make demo" ninja -C "$folder/build" -j "$jobs" lockstep
    configure all
    cost "what make test adds" ninja -C "$folder/build" -j "$jobs"
done
echo "objects of the last run, seconds each"
awk 'NR > 1 { printf "%8.1f %s\n", ($2 - $1) / 1000, $4 }' "$folder/build/.ninja_log" | sort -rn | head -n 25
