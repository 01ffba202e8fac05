#!/usr/bin/env bash
# Installs a Debian package of Lockstep in a bare Debian 12 and uses it there: version, check, data, training, its documents. As root.
# Argument: the package. ROOT: a folder for that system, kept for the next time (default: one that is removed again).
set -euo pipefail
package=$(realpath "$1")
. "$(dirname "$0")/bare_debian.sh"
enter_bare_debian
cp "$package" "$root/tmp/lockstep.deb"

inside 'apt-get update -qq && apt-get install -y -qq --no-install-recommends /tmp/lockstep.deb >/tmp/apt.log 2>&1 || { tail /tmp/apt.log; exit 1; }'
inside 'lockstep --version'
inside 'test -s /usr/share/man/man1/lockstep.1.gz -o -s /usr/share/man/man1/lockstep.1'
inside 'cd /usr/share/doc/lockstep && test -s LICENSE && test -s LICENSE.chart.js && grep -q "^Copyright: .* Chart.js" copyright'
inside 'bash -n /usr/share/bash-completion/completions/lockstep'
inside 'lockstep check /usr/share/lockstep/recipes/llama3_405b.toml | tail -n 2'
inside 'cd /tmp && rm -rf text data out && mkdir text && for i in $(seq 40); do echo "the cat number $i sat on the mat and looked at $((i * 7)) mice" > text/$i.txt; done
        lockstep data prepare text --out data --tokenizer bytes
        cat > r.toml <<RECIPE
[job]
dump_folder = "out"
[model]
dim = 32
n_layers = 2
n_heads = 4
n_kv_heads = 2
ffn_dim = 48
[training]
dataset_path = "data"
local_batch_size = 2
seq_len = 32
steps = 5
[lr_scheduler]
warmup_steps = 0
[parallelism]
data_parallel_shard_degree = 2
[checkpoint]
enable = true
last_save_model_only = false
RECIPE
        lockstep train r.toml && lockstep eval out --json && lockstep sample out --prompt "the cat" --max-tokens 8'
echo "the package installs and runs in a bare Debian 12"
