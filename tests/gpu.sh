#!/bin/bash
# Tests and measures Tercio on this machine's NVIDIA GPUs from nothing but an unpacked tarball (bazel build //deploy:tarball): needs
# bash and Python 3.9, no Bazel; if PyTorch is installed, compares with it. Ends within 29 minutes: every part has a limit,
# and they add up to this (--seconds: another limit of all). How long it takes on a GPU is not known yet.
#   tests/gpu.sh [--tree DIR] [--output DIR] [--quick] [--only PART,...] [--seconds N]
# --tree is the unpacked tarball (default: the one this file is in); --output gets gpu.json, gpu.md and gpu.log (default: ./gpu).
# --quick uses tiny models. Exits with 0 if nothing failed. docs/benchmarks.md describes the parts.
set -euo pipefail
command -v python3 > /dev/null || { echo "error: python3 not found" >&2; exit 2; }
exec python3 -B "$(dirname "$(readlink -f "$0")")/gpu/main.py" "$@"
