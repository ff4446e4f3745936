#!/bin/bash
# Compares Tercio with PyTorch on this machine: prints a table of ratios (about 15 minutes on two cores).
#   tests/bench/run.sh [--rounds N] [--models nanogpt,gpt2-124m] [--engine_only] [--compiled]
# PyTorch is installed in a virtual environment of its own (about 6 GB) in $XDG_CACHE_HOME/tercio/bench; with
# TERCIO_BENCH_PYTHON=/path/to/python that Python is used instead; it must have torch.
set -euo pipefail
cd "$(dirname "$0")/../.."
source deploy/environment.sh

python="${TERCIO_BENCH_PYTHON:-}"
if [[ -z "$python" ]]; then
  venv="${XDG_CACHE_HOME:-$HOME/.cache}/tercio/bench"
  python="$venv/bin/python"
  if ! "$python" -c 'import torch' 2>/dev/null; then
    python3 -m venv "$venv" || { echo "error: apt-get install python3-venv" >&2; exit 1; }
    "$venv/bin/pip" install --quiet torch numpy
  fi
fi
"$python" -c 'import torch' || { echo "error: $python cannot import torch" >&2; exit 1; }

./deploy/install_dependencies.sh
./deploy/build.sh
bazel build --noshow_progress //tests/bench:engine_bench
exec python3 tests/bench/bench.py --python "$python" "$@"
