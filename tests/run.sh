#!/bin/bash
# Everything that a change must pass: installs what is missing, checks the sources, builds everything, runs
# every test.
#   tests/run.sh [--long]      --long adds the tests tagged `soak`, and clang-tidy
# Prints each test with its outcome, every failed or skipped case with its reason, and at the end
#   N passed, N failed, N skipped
# counted over GoogleTest cases, source checks, and the targets that are not GoogleTests. Ends with 0 when
# nothing failed.
set -uo pipefail
cd "$(dirname "$0")/.."
source deploy/environment.sh

long=no
case "${1:-}" in
  --long) long=yes ;;
  "") ;;
  *) echo "usage: tests/run.sh [--long]" >&2; exit 2 ;;
esac
give_up() { echo "error: $1" >&2; echo "0 passed, 1 failed, 0 skipped"; exit 1; }

install=(--tests)
without=()  # not "long": Bazel takes that for the size, too
if [[ "$long" == yes ]]; then install+=(--long); else without+=(-soak); fi
gpu="GPU: tests tagged gpu run"
if [[ ! -e /dev/nvidia0 ]]; then without+=(-gpu); gpu="GPU: none here; tests tagged gpu are built where CUDA is, not run"; fi
filter=("--test_tag_filters=$(IFS=,; echo "${without[*]}")")
./deploy/install_dependencies.sh "${install[@]}" || give_up "packages are missing"

results="$(mktemp -d)"
trap 'rm -rf "$results"' EXIT

python3 tests/summary_test.py --results "$results/checks.jsonl"
python3 tests/install_test.py --results "$results/checks.jsonl"
python3 tests/dashboards_test.py --results "$results/checks.jsonl"
python3 tests/tidy/check_sources_test.py --results "$results/checks.jsonl"
python3 tests/tidy/check_sources.py --results "$results/checks.jsonl"

bazel build --noshow_progress //... || give_up "the build failed"
cat "$(bazel info output_base 2>/dev/null)/external/cuda/status.txt" || give_up "nothing says whether CUDA was built"
echo "$gpu"
./deploy/build.sh || give_up "the programs could not be linked into ./bin"
# Made on request only; its rules are read here.
bazel build --noshow_progress --nobuild //deploy:tarball //deploy:tarball_slim || give_up "the rules of the tarball are wrong"

# What reads files that others made, with a few seconds of changed ones.
./tests/fuzz/fuzz.sh --seconds 10 --results "$results/checks.jsonl"

if [[ "$long" == yes ]]; then ./tests/tidy/clang_tidy.sh --results "$results/checks.jsonl"; fi

# As a user would: the programs in ./bin, real processes.
python3 tests/e2e/e2e_test.py --results "$results/checks.jsonl"
python3 tests/e2e/cluster_test.py --results "$results/checks.jsonl"
python3 tests/e2e/agent_death_test.py --results "$results/checks.jsonl"
python3 tests/e2e/snapshot_test.py --results "$results/checks.jsonl"
python3 tests/e2e/checkpoint_test.py --results "$results/checks.jsonl"
python3 tests/e2e/shared_checkpoints_test.py --results "$results/checks.jsonl"
python3 tests/e2e/data_test.py --results "$results/checks.jsonl"
python3 tests/e2e/bert_test.py --results "$results/checks.jsonl"
python3 tests/e2e/huggingface_test.py --results "$results/checks.jsonl"
python3 tests/e2e/precision_test.py --results "$results/checks.jsonl"
python3 tests/e2e/cuda_test.py --results "$results/checks.jsonl"
python3 tests/e2e/gpu_faults_test.py --results "$results/checks.jsonl"
python3 tests/e2e/gpu_check_test.py --results "$results/checks.jsonl"
python3 tests/e2e/tarball_test.py --results "$results/checks.jsonl"
python3 tests/e2e/hang_test.py --results "$results/checks.jsonl"
python3 tests/e2e/guard_test.py --results "$results/checks.jsonl"
python3 tests/e2e/faults_test.py --results "$results/checks.jsonl"
python3 tests/e2e/figures_test.py --results "$results/checks.jsonl"
python3 tests/e2e/habits_test.py --results "$results/checks.jsonl"
python3 tests/e2e/logs_test.py --results "$results/checks.jsonl"
python3 tests/e2e/bad_clients_test.py --results "$results/checks.jsonl"
python3 tests/e2e/tls_test.py --results "$results/checks.jsonl"
python3 tests/e2e/prometheus_test.py --results "$results/checks.jsonl"
python3 tests/e2e/security_test.py --results "$results/checks.jsonl"
python3 tests/e2e/bounds_test.py --results "$results/checks.jsonl"
python3 tests/e2e/private_coordinator_test.py --results "$results/checks.jsonl"
python3 tests/e2e/partition_test.py --results "$results/checks.jsonl"
python3 tests/e2e/report_test.py --results "$results/checks.jsonl"
python3 tests/e2e/shell_test.py --results "$results/checks.jsonl"
python3 tests/e2e/guide_test.py --results "$results/checks.jsonl"
python3 tests/e2e/installation_test.py --results "$results/checks.jsonl"
python3 tests/e2e/kubernetes_test.py --results "$results/checks.jsonl"
python3 tests/e2e/pods_test.py --results "$results/checks.jsonl"
python3 tests/e2e/version_skew_test.py --results "$results/checks.jsonl"
python3 tests/e2e/backup_test.py --results "$results/checks.jsonl"
python3 tests/e2e/health_test.py --results "$results/checks.jsonl"
if [[ "$long" == yes ]]; then
  python3 tests/e2e/fresh_debian_test.py --results "$results/checks.jsonl"
  python3 tests/e2e/reproducible_test.py --results "$results/checks.jsonl"
fi

# Tests of several processes share the cores with nobody: two at a time, and those tagged cpu:2 alone.
bazel test --noshow_progress --test_summary=none --jobs=2 --local_test_jobs=2 --build_tests_only "${filter[@]}" \
  --build_event_json_file="$results/events.json" //...
python3 tests/summary.py --events "$results/events.json" --checks "$results/checks.jsonl" --bazel_code $?
