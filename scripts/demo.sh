#!/usr/bin/env bash
# Prepares text that is on every machine with a compiler, then trains recipes/demo.toml on it from scratch.
# Argument: the lockstep binary.
set -euo pipefail
cd "$(dirname "$0")/.."
lockstep=${1:-build/release/lockstep}
out=outputs/demo

if [ ! -f "$out/data/manifest.json" ]; then
    "$lockstep" data prepare /usr/include "$("${CXX:-c++}" -print-file-name=include)" --out "$out/data" --vocab 4096 --overwrite
fi
rm -rf "$out/checkpoint" "$out/metrics.jsonl"  # a demo begins at step 1
exec "$lockstep" train recipes/demo.toml
