#!/usr/bin/env bash
# The program of the wheel: it runs from the environment's bin, finds what came with it from any folder, and trains.
# Argument: a virtual environment in which `pip install .` ran.
set -euo pipefail
environment=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
PATH=$environment/bin:$PATH
test "$(command -v lockstep)" = "$environment/bin/lockstep"
lockstep --version
lockstep clusters --json | grep -q "\"file\":\"$environment/share/lockstep/clusters/h100.toml\""
lockstep check llama3_8b --cluster h200 --quiet | head -n 1 | grep '^fits: '
seq 60000 > numbers.txt
lockstep data prepare numbers.txt --out data --tokenizer bytes
lockstep train one_rank --training.dataset_path data --training.steps 2 --lr_scheduler.warmup_steps 1 --job.dump_folder run --json --quiet
"$environment/bin/python" -c 'import lockstep; print(lockstep.Recipe.read("llama3_8b").plan(cluster="h100").mfu)'
echo "the wheel's program works"
