#!/usr/bin/env bash
# run.sh BUILD SECONDS [NAME...]: runs the fuzz targets of a build, two at a time, from their seeds and from what earlier runs found
# interesting. Findings stay in BUILD/findings. Exit code 1 where there is one.
set -u
build=$(realpath "$1") seconds=$2
shift 2
here=$(dirname "$(realpath "$0")")
root=$here/../..
declare -A more=([recipe]=$root/recipes [cluster]=$root/clusters [recipe_from]=$root/tests/compile/torchtitan_recipes
    [parquet]=$root/tests/data/parquet)  # folders with files of that kind
mkdir -p "$build/findings"
[ $# -gt 0 ] || set -- $(cd "$here" && ls ./*_fuzz.cpp | sed 's|^./||; s|_fuzz.cpp$||')

one() {
    local name=$1 log=$build/findings/$1.log corpus=$build/corpus/$1
    mkdir -p "$corpus" "$here/seeds/$name"
    if timeout $((seconds + 120)) "$build/tests/fuzz/fuzz_$name" "$corpus" "$here/seeds/$name" $2 -max_total_time="$seconds" -timeout=10 \
        -rss_limit_mb=2048 -max_len=65536 -close_fd_mask=1 -artifact_prefix="$build/findings/$name-" >"$log" 2>&1; then
        echo "$name: $(grep -oE 'Done [0-9]+ runs' "$log" | tail -1), $(grep -oE 'cov: [0-9]+' "$log" | tail -1) edges, nothing found"
    else
        echo "$name: FOUND $(grep -m1 -E 'ERROR:|runtime error:|terminate called|what\(\):' "$log"); $log"
        return 1
    fi
}

failed=0
while [ $# -gt 0 ]; do
    pids=()
    for name in "$1" ${2:+"$2"}; do
        one "$name" "${more[$name]:-}" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    shift; [ $# -eq 0 ] || shift
done
exit $failed
