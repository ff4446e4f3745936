#!/bin/bash
# Builds the programs and links them into ./bin.
set -euo pipefail
cd "$(dirname "$0")/.."
export HOME="${HOME:-/root}"
bazel build --noshow_progress //cli:tercio //coordinator:tercio-coordinator \
  //worker/agent:tercio-agent //worker/trainer:tercio-trainer
output="$(bazel info bazel-bin 2>/dev/null)"
mkdir -p bin
ln -sfn "$output/cli/tercio" bin/tercio
ln -sfn "$output/coordinator/tercio-coordinator" bin/tercio-coordinator
ln -sfn "$output/worker/agent/tercio-agent" bin/tercio-agent
ln -sfn "$output/worker/trainer/tercio-trainer" bin/tercio-trainer
