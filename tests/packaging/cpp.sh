#!/usr/bin/env bash
# The example of examples/ built and run as a user's program would be: against an installed Lockstep. cpp.sh BUILD_FOLDER
set -euo pipefail
build=$1 root=$(cd "$(dirname "$0")/../.." && pwd)
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
cmake --install "$build" --prefix "$here/prefix" >/dev/null
cmake -S "$root/examples" -B "$here/build" -G Ninja -DCMAKE_PREFIX_PATH="$here/prefix" -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$here/build" >/dev/null
cd "$here"
"$here/build/try_layouts" "$root/tests/python/tiny.toml" "$root/clusters/h100.toml" | tee out.txt
grep -q 'tensor_parallel_degree = 2: .* s a step' out.txt
grep -q '^step 5: loss' out.txt
grep -q '^stopped: caller, .*step-00000005$' out.txt
grep -Eq '^[0-9]+ tensors' out.txt
if "$here/build/try_layouts" no_such.toml "$root/clusters/h100.toml" 2>err.txt; then exit 1; fi
grep -q '\[recipe.unreadable\]' err.txt
