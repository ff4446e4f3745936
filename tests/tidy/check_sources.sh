#!/bin/bash
# What no compiler checks: formatting, file lengths, and which folders may include what.
set -uo pipefail
cd "$(dirname "$0")/../.."
faults=0
fault() { echo "sources: $*" >&2; faults=$((faults + 1)); }

mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cc')
for file in "${files[@]}"; do
  clang-format --dry-run --Werror "$file" >/dev/null 2>&1 || fault "$file: run clang-format -i $file"
  lines="$(wc -l < "$file")"
  [[ "$lines" -le 800 ]] || fault "$file: $lines lines, at most 800"
done

# The deciding parts are pure: no clocks, threads, files, sockets or RPC in them.
pure='^(plan|coordinator/core|coordinator/planner|worker/agent/core)/'
for file in $(printf '%s\n' "${files[@]}" | grep -E "$pure" | grep -v '_test\.cc$'); do
  if grep -nE '#include[ ]*[<"](thread|mutex|condition_variable|fstream|chrono|grpcpp/|sqlite3|unistd|sys/|absl/time/clock|common/(clock|file|log|mutex))' "$file"; then
    fault "$file: a pure folder includes the world outside"
  fi
done
# Kernels know nothing of the service, and the service nothing of kernels.
for file in $(printf '%s\n' "${files[@]}" | grep -E '^kernels/'); do
  if grep -nE '#include "(plan|proto|worker|coordinator|cli|config)/' "$file"; then
    fault "$file: kernels include the parts above them"
  fi
done
for file in $(printf '%s\n' "${files[@]}" | grep -E '^(coordinator|cli)/'); do
  if grep -nE '#include "kernels/' "$file"; then fault "$file: includes kernels"; fi
done

[[ "$faults" -eq 0 ]] && echo "sources: ${#files[@]} files checked"
[[ "$faults" -eq 0 ]]
