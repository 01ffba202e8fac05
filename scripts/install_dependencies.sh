#!/usr/bin/env bash
# Installs what Lockstep is built with (Debian, Ubuntu). Does nothing where all of it is there.
# Arguments: further packages, e.g. clang-format.
set -euo pipefail

packages=(ca-certificates python3 g++ cmake ninja-build mold pkg-config
          libdnnl-dev libtomlplusplus-dev nlohmann-json3-dev libcli11-dev libfmt-dev libspdlog-dev libpcre2-dev libutf8proc-dev libxxhash-dev
          zlib1g-dev libzstd-dev libsnappy-dev libeigen3-dev libzmq3-dev cppzmq-dev
          libpython3-dev pybind11-dev python3-numpy
          libgtest-dev libbenchmark-dev openmpi-bin libopenmpi-dev "$@")

if [ -n "${LOCKSTEP_SKIP_INSTALL:-}" ]; then exit 0; fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    cat >&2 <<MESSAGE
This script installs with apt, which is not here. Please install
  a C++20 compiler (GCC 12 or later), CMake 3.25 or later, Ninja, pkg-config; ccache and mold are optional
  toml++, nlohmann-json, CLI11, fmt, spdlog, PCRE2 (8 bit), utf8proc, xxHash, zlib, zstd, snappy, Eigen, ZeroMQ with cppzmq, GoogleTest; Python 3; Google Benchmark for \`make bench\`; oneDNN, an MPI and pybind11 with numpy (for the Python module) are optional
then run make again with LOCKSTEP_SKIP_INSTALL=1.
MESSAGE
    exit 1
fi

missing=()
for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "These packages are missing, and there is no sudo to install them with: ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "installing: ${missing[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null
