#!/usr/bin/env bash
# Prepares text that is on every machine with a compiler, trains recipes/demo.toml on it from scratch, stops on the way and goes on
# from its own checkpoint, samples from what it has learned, and prints planned beside measured step time.
# Argument: the lockstep binary.
set -euo pipefail
cd "$(dirname "$0")/.."
lockstep=${1:-build/release/lockstep}
recipe=recipes/demo.toml
out=outputs/demo

number() { sed -E "s/.*\"$1\":([0-9.e+-]+).*/\1/" "$2"; }

if [ ! -f "$out/data/manifest.json" ]; then
    "$lockstep" data prepare /usr/include "$("${CXX:-c++}" -print-file-name=include)" --out "$out/data" --vocab 4096 --overwrite
fi
rm -rf "$out/checkpoint" "$out/metrics.jsonl"  # a demo begins at step 1

"$lockstep" bench --quick --out "$out/machine.toml"
"$lockstep" plan "$recipe" --cluster "$out/machine.toml" --json > "$out/plan.json"
"$lockstep" train "$recipe" --training.steps 220 --lr_scheduler.total_steps 260
"$lockstep" train "$recipe" --json > "$out/run.json"  # from step 220
"$lockstep" sample "$out" --prompt "#include <" --max-tokens 60 --temperature 0.7 --seed 1
echo

of_run() { number "$1" "$out/run.json"; }
awk -v planned_s="$(number step_time_s "$out/plan.json")" -v step_s="$(of_run step_time_s)" \
    -v planned="$(of_run peak_bytes_planned)" -v resident="$(of_run peak_bytes_resident)" \
    -v loss="$(of_run heldout_loss)" -v unigram="$(of_run unigram_entropy_nats)" -v out="$out" 'BEGIN {
    printf "step time: planned %.0f ms from a quick benchmark of this machine, measured %.0f ms\n", 1000 * planned_s, 1000 * step_s
    printf "memory of all ranks: planned %.3f GiB, resident %.3f GiB\n", planned / 2^30, resident / 2^30
    printf "held-out loss %.4f nats; a model that knows only how often each token occurs has %.4f\n", loss, unigram
    printf "written: %s (data, checkpoints, metrics.jsonl, machine.toml, plan.json, run.json)\n", out }'
