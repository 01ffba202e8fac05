#!/usr/bin/env bash
# Makes a folder of prose to train on: the six novels of Jane Austen, a file a chapter, 4 MB, public domain.
# They come from the Debian and Ubuntu package r-cran-janeaustenr, which is unpacked and not installed.
# Argument: the folder. Exit code 1, with the reason on standard error, if the package cannot be had.
set -euo pipefail
out=$1
script=$(dirname "$0")/novels.py
if [ -f "$out/prideprejudice/61.txt" ]; then exit 0; fi

if ! command -v apt-get >/dev/null; then
    echo "the novels come from a Debian package, and apt-get is not here" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "fetching six novels of Jane Austen (r-cran-janeaustenr, 1.6 MB)" >&2
download() { (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root r-cran-janeaustenr) >"$work/log" 2>&1; }
if ! download; then  # the list of packages may be old, or there is none
    if [ "$(id -u)" -eq 0 ]; then apt-get update -qq >/dev/null 2>&1 || true; else sudo -n apt-get update -qq >/dev/null 2>&1 || true; fi
    download || { tail -n 3 "$work/log" >&2; exit 1; }
fi
dpkg-deb -x "$work"/r-cran-janeaustenr_*.deb "$work/package"
python3 "$script" "$work/package/usr/lib/R/site-library/janeaustenr/data" "$work/novels"
mkdir -p "$out"
cp -r "$work/novels/." "$out/"
