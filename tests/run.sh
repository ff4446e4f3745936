#!/bin/bash
# Runs everything that a change must pass: installs missing packages, checks the sources, builds all targets, runs
# every test.
#   tests/run.sh [--fast | --long]
# --fast: only checks of the sources and unit tests, for the minutes between two edits
# --long: also the tests tagged `soak`, clang-tidy, a minute of fuzzing for each target, a fresh Debian, a second build
# Prints each test with its outcome, the ten slowest, every failed or skipped case with its reason, and at the end
#   N passed, N failed, N skipped
# counted over the cases of GoogleTests and scripts, source checks, and the targets that are neither. Exits with 0
# if nothing failed. A test that passed is not repeated until something changes that it depends on.
set -uo pipefail
cd "$(dirname "$0")/.."
source deploy/environment.sh

mode=all
case "${1:-}" in
  --fast) mode=fast ;;
  --long) mode=long ;;
  "") ;;
  *) echo "usage: tests/run.sh [--fast | --long]" >&2; exit 2 ;;
esac
give_up() { echo "error: $1" >&2; echo "0 passed, 1 failed, 0 skipped"; exit 1; }

install=(--tests)
without=()  # not "long", which Bazel would take for the test size
case "$mode" in
  fast) without+=(-soak -e2e -gpu) ;;
  all) without+=(-soak) ;;
  long) install+=(--long) ;;
esac
gpu="GPU: found; tests tagged gpu are run"
if [[ ! -e /dev/nvidia0 ]]; then without+=(-gpu); gpu="GPU: none found; tests tagged gpu are built if CUDA is installed, but not run"; fi
filter=("--test_tag_filters=$(IFS=,; echo "${without[*]}")")
if [[ "$mode" == fast ]]; then filter+=(--test_size_filters=small,medium); fi
./deploy/install_dependencies.sh "${install[@]}" || give_up "cannot install the missing packages"

results="$(mktemp -d)"
trap 'rm -rf "$results"' EXIT

python3 tests/tidy/check_sources.py --results "$results/checks.jsonl"

if [[ "$mode" != fast ]]; then
  bazel build --noshow_progress --workspace_status_command=/bin/true //... || give_up "the build failed"
  cat "$(bazel info output_base 2>/dev/null)/external/cuda/status.txt" || give_up "cannot read whether CUDA was built"
  echo "$gpu"
  # Built on request only; here its rules are only analysed.
  bazel build --noshow_progress --nobuild //deploy:tarball //deploy:tarball_slim || give_up "the rules of the tarball have errors"
fi

if [[ "$mode" == long ]]; then
  ./deploy/build.sh || give_up "cannot link the programs into ./bin"
  ./tests/tidy/clang_tidy.sh --results "$results/checks.jsonl"
  ./tests/fuzz/fuzz.sh --seconds 60 --results "$results/checks.jsonl"
  python3 tests/e2e/fresh_debian_test.py --results "$results/checks.jsonl"
  python3 tests/e2e/reproducible_test.py --results "$results/checks.jsonl"
fi

# Three tests at a time keep two cores busy, since most of them also wait; one that is tagged cpu:3 runs alone, so that it has the
# cores to itself (--local_test_jobs would make Bazel ignore the tag). Programs under test carry no commit (.bazelrc); those in
# ./bin do.
bazel test --noshow_progress --test_summary=none --jobs=3 --local_cpu_resources=3 --build_tests_only "${filter[@]}" \
  --build_event_json_file="$results/events.json" //...
code=$?
if [[ "$mode" != fast ]]; then ./deploy/build.sh || give_up "cannot link the programs into ./bin"; fi
python3 tests/summary.py --events "$results/events.json" --checks "$results/checks.jsonl" --bazel_code "$code"
