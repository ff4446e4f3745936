#!/bin/bash
# clang-tidy (.clang-tidy says which checks) over all sources, or over those named.
#   tests/tidy/clang_tidy.sh [--results FILE] [SOURCE.cc ...]
set -uo pipefail
cd "$(dirname "$0")/../.."
source deploy/environment.sh

results=""
if [[ "${1:-}" == --results ]]; then results="$2"; shift 2; fi
python3 tests/tidy/compile_commands.py || exit 1
files=("$@")
[[ $# -gt 0 ]] || mapfile -t files < <(python3 -c 'import json
for c in json.load(open("compile_commands.json")): print(c["file"])')

output="$(printf '%s\0' "${files[@]}" | xargs -0 -P "$(nproc)" -n 4 clang-tidy -p . --quiet 2>/dev/null)"
faults="$(grep -cE ': (warning|error): ' <<<"$output")"
[[ "$faults" -eq 0 ]] || grep -E -A3 ': (warning|error): ' <<<"$output" >&2
outcome=passed
[[ "$faults" -eq 0 ]] || outcome=failed
if [[ -n "$results" ]]; then
  printf '{"name": "clang-tidy", "outcome": "%s", "reason": "%s faults"}\n' "$outcome" "$faults" >> "$results"
fi
echo "clang-tidy: ${#files[@]} files, $faults faults"
[[ "$faults" -eq 0 ]]
