#!/usr/bin/env bash
# same_programs.sh A B: two builds of lockstep compile every recipe to the same program.
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for recipe in recipes/*.toml; do
    "$1" show "$recipe" >"$folder/a" 2>"$folder/log" || { cat "$folder/log"; exit 1; }
    "$2" show "$recipe" >"$folder/b" 2>"$folder/log" || { cat "$folder/log"; exit 1; }
    cmp "$folder/a" "$folder/b" || { echo "$recipe: $1 and $2 make different programs of it"; exit 1; }
done
echo "the same programs"
