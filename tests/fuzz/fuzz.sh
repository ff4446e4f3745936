#!/bin/bash
# Coverage-guided fuzzing of the readers of foreign files: libFuzzer with AddressSanitizer and
# UndefinedBehaviorSanitizer, from Debian's clang.
#   tests/fuzz/fuzz.sh [--seconds N] [--results FILE] [TARGET ...]
# Each target (its TARGET_fuzz.cc lies here) runs for N seconds (10), from the seeds of make_seeds.py and what
# earlier runs have found, which is kept in TERCIO_FUZZ_DIR (~/.cache/tercio-fuzz). An input that breaks a
# target is left in TERCIO_FUZZ_DIR/found and ends the script with 1.
set -uo pipefail
cd "$(dirname "$0")/../.."
source deploy/environment.sh

seconds=10
results=""
targets=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --seconds) seconds="$2"; shift 2 ;;
    --results) results="$2"; shift 2 ;;
    -*) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) targets+=("$1"); shift ;;
  esac
done
[[ ${#targets[@]} -gt 0 ]] || targets=(safetensors torch_file megatron indexed_dataset labelled_texts tokenizer job_file)
folder="${TERCIO_FUZZ_DIR:-$HOME/.cache/tercio-fuzz}"
mkdir -p "$folder/found"

failed=0
report() {  # NAME OUTCOME REASON
  echo "fuzz: $1: $2${3:+: $3}"
  if [[ "$2" == failed ]]; then failed=1; fi
  if [[ -n "$results" ]]; then
    printf '{"name": "fuzz %s", "outcome": "%s", "reason": "%s"}\n' "$1" "$2" "$3" >> "$results"
  fi
}
if ! command -v clang++ >/dev/null; then
  report build skipped "clang is not installed (deploy/install_dependencies.sh --tests)"
  exit 0
fi

# A server of its own: with another compiler the usual one would forget all that it has built.
clang_bazel() { bazel --output_base="$folder/bazel" --max_idle_secs=60 "$@"; }
labels=("${targets[@]/#///tests/fuzz:}")
if ! clang_bazel build --noshow_progress --config=fuzz --symlink_prefix=/ "${labels[@]/%/_fuzz}"; then
  report build failed "the targets could not be built"
  exit 1
fi
binaries="$(clang_bazel info --config=fuzz bazel-bin 2>/dev/null)/tests/fuzz"
python3 tests/fuzz/make_seeds.py "$folder/seeds"

for target in "${targets[@]}"; do
  mkdir -p "$folder/corpus/$target"
  log="$folder/$target.log"
  if "$binaries/${target}_fuzz" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
      -artifact_prefix="$folder/found/$target-" "$folder/corpus/$target" "$folder/seeds/$target" >"$log" 2>&1; then
    runs="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
    report "$target" passed ""
    echo "fuzz: $target: $runs inputs in $seconds s, $(grep -oE 'cov: [0-9]+' "$log" | tail -1)"
  else
    tail -40 "$log" >&2
    report "$target" failed "$(grep -E '^(SUMMARY|does not hold)' "$log" | head -1 | tr -d '"\\')"
    ls -t "$folder/found/$target-"* 2>/dev/null | head -1 >&2
  fi
done
exit "$failed"
