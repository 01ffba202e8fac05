#!/usr/bin/env bash
# Trains recipes/demo.toml from scratch, on 8 ranks, on the novels of Jane Austen (without apt: on this machine's C and C++ headers).
# It stops twice and goes on from its own checkpoint, evaluates the model, samples from it, prints planned beside measured step time,
# and shows that the first losses are those of one rank. Exit code 1: they differ by more than float32 rounding explains.
# Argument: the lockstep binary.
set -euo pipefail
cd "$(dirname "$0")/.."
lockstep=${1:-build/release/lockstep}
recipe=recipes/demo.toml
out=outputs/demo
first=5            # steps whose losses are compared
tolerance=1e-5     # relative; float32 holds 6e-8, measured over these steps: 5e-8

number() { sed -E "s/.*\"$1\":([0-9.e+-]+).*/\1/" "$2"; }

if [ ! -f "$out/data/manifest.json" ]; then
    if scripts/demo_text.sh "$out/text"; then text=("$out/text"); else
        echo "training on this machine's headers instead" >&2
        text=(/usr/include "$("${CXX:-c++}" -print-file-name=include)")
    fi
    "$lockstep" data prepare "${text[@]}" --out "$out/data" --vocab 4096 --overwrite
fi
rm -rf "$out/checkpoint" "$out/metrics.jsonl" "$out/one_rank"  # a demo begins at step 1

"$lockstep" bench --quick --out "$out/machine.toml"
"$lockstep" plan "$recipe" --cluster "$out/machine.toml" --json > "$out/plan.json"
"$lockstep" train "$recipe" --training.steps "$first" --lr_scheduler.total_steps 260 --metrics.log_freq 1
"$lockstep" train "$recipe" --training.steps 220 --lr_scheduler.total_steps 260  # from step 5
"$lockstep" train "$recipe" --json > "$out/run.json"                             # from step 220
echo "the first steps once more, on one rank:" >&2
"$lockstep" train recipes/one_rank.toml --training.steps "$first" --lr_scheduler.total_steps 260 --metrics.log_freq 1 \
    --job.dump_folder "$out/one_rank" --checkpoint.enable false --validation.enable false
"$lockstep" eval "$out" --steps 10
"$lockstep" sample "$out" --prompt "It is a truth universally acknowledged, that" --max-tokens 120 --temperature 0.7 --seed 1
echo

of_run() { number "$1" "$out/run.json"; }
awk -v planned_s="$(number step_time_s "$out/plan.json")" -v step_s="$(of_run step_time_s)" \
    -v planned="$(of_run peak_bytes_planned)" -v resident="$(of_run peak_bytes_resident)" \
    -v loss="$(of_run heldout_loss)" -v unigram="$(of_run unigram_entropy_nats)" -v out="$out" 'BEGIN {
    printf "step time: planned %.0f ms from a quick benchmark of this machine, measured %.0f ms\n", 1000 * planned_s, 1000 * step_s
    printf "memory of all ranks: planned %.3f GiB, resident %.3f GiB\n", planned / 2^30, resident / 2^30
    printf "held-out loss %.4f nats; a model that knows only how often each token occurs has %.4f\n", loss, unigram
    printf "written: %s (data, checkpoints, metrics.jsonl, machine.toml, plan.json, run.json, one_rank)\n\n", out }'

# step, loss: of the first lines of a run's metrics
losses() { head -n "$first" "$1" | sed -E 's/.*"step":([0-9]+).*"loss_metrics\/global_avg_loss":([0-9.e+-]+).*/\1 \2/'; }
join <(losses "$out/metrics.jsonl") <(losses "$out/one_rank/metrics.jsonl") | awk -v wanted="$first" -v tolerance="$tolerance" '
    BEGIN { printf "step   loss of 8 ranks   of one rank\n" }
    { printf "%4d   %15.7f   %11.7f\n", $1, $2, $3
      far = ($2 > $3 ? $2 - $3 : $3 - $2) / $3
      if (!(far <= largest)) largest = far
      ++steps }
    END {
      same = steps == wanted && largest <= tolerance
      printf "%s: largest relative difference %.1e, float32 rounding explains %.0e\n", same ? "equal" : "DIFFERENT", largest, tolerance
      exit !same }'
