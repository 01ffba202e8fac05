#!/usr/bin/env bash
# The two commands of the README on a bare Debian 12 that has git and make: `make demo`, `make test`. As root.
# ROOT: a folder for that system, kept for the next time (default: one that is removed again).
set -euo pipefail
source=$(realpath "$(dirname "$0")/../..")
. "$source/tests/packaging/bare_debian.sh"
enter_bare_debian git,make,ca-certificates
rm -rf "$root/root/lockstep"
git clone -q "$source" "$root/root/lockstep"
inside 'cd /root/lockstep && make demo'
inside 'cd /root/lockstep && make test'
