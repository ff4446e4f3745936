#!/bin/bash
# Proves and measures Tercio on this machine's NVIDIA GPUs, from an unpacked tarball (bazel build //deploy:tarball) alone: needs bash
# and Python 3.9, no Bazel; with PyTorch it compares with that, too. Less than 8 minutes on an H200.
#   tests/gpu.sh [--tree DIR] [--output DIR] [--quick] [--only PART,...]
# --tree is the unpacked tarball (default: the one this file is in); --output gets gpu.json, gpu.md and gpu.log (default: ./gpu).
# --quick takes tiny models. Ends with 0 when nothing failed. What the parts are: docs/benchmarks.md.
set -euo pipefail
command -v python3 > /dev/null || { echo "error: python3 is not here" >&2; exit 2; }
exec python3 -B "$(dirname "$(readlink -f "$0")")/gpu/main.py" "$@"
