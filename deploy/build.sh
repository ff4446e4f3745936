#!/bin/bash
# Builds the programs and links them into ./bin (links into Bazel's output; git ignores them).
#   deploy/build.sh [--cpu] [options of bazel build]
# --cpu: without the trainer for GPUs.
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/environment.sh

programs=(cli/tercio coordinator/tercio-coordinator worker/agent/tercio-agent worker/trainer/tercio-trainer)
gpus=yes
if [[ "${1:-}" == --cpu ]]; then gpus=no; shift; fi
# The trainer for GPUs exists if a toolkit was found (bazel/cuda_toolkit.bzl).
if [[ "$gpus" == yes ]] && bazel query --noshow_progress //worker/trainer:tercio-trainer-cuda > /dev/null 2>&1; then
  programs+=(worker/trainer/tercio-trainer-cuda)
fi
targets=()
for program in "${programs[@]}"; do targets+=("//${program%/*}:${program##*/}"); done

bazel build --noshow_progress "$@" "${targets[@]}"
output="$(bazel info "$@" bazel-bin 2>/dev/null)"
mkdir -p bin
for program in "${programs[@]}"; do ln -sfn "$output/$program" "bin/${program##*/}"; done
