#!/bin/bash
# Everything that a change must pass: installs what is missing, builds, checks the sources, runs every test.
#   tests/run.sh [--long]      --long adds the tests tagged `long`
# The closing line counts GoogleTest cases and source checks: "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")/.."
export HOME="${HOME:-/root}"

./deploy/install_dependencies.sh --tests || exit 1

filters="-long"
[[ "${1:-}" == "--long" ]] && filters=""

results="$(mktemp -d)"
trap 'rm -rf "$results"' EXIT

./tests/tidy/check_sources.sh > "$results/sources.txt" 2>&1
sources=$?
cat "$results/sources.txt"

bazel build --noshow_progress //... || { echo "0 passed, 1 failed, 0 skipped (the build)"; exit 1; }
if [[ -d cli ]]; then ./deploy/build.sh || exit 1; fi
bazel test --noshow_progress --jobs=2 --test_tag_filters="$filters" //...
tests=$?

python3 tests/summary.py "$(bazel info bazel-testlogs 2>/dev/null)" "$sources" "$tests"
