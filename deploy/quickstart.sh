#!/bin/bash
# From a fresh Debian 12 to a trained model: installs what is missing, builds, trains a small GPT with eight processes
# (tensor 2 x pipeline 2 x data 2) on this repository's own text, and generates text with it.
#   deploy/quickstart.sh [--set KEY=VALUE ...]      further options are passed to `tercio run`
# Its output is in $XDG_STATE_HOME/tercio/quickstart (~/.local/state/tercio/quickstart), or in
# $TERCIO_QUICKSTART_DIR.
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/environment.sh

./deploy/install_dependencies.sh
# Only what runs below, and in sight: a build that says nothing for minutes looks like one that hangs.
progress=(--show_progress)
if [[ ! -t 2 ]]; then progress+=(--curses=no --show_progress_rate_limit=15); fi
./deploy/build.sh --cpu "${progress[@]}"

state="${TERCIO_QUICKSTART_DIR:-${XDG_STATE_HOME:-$HOME/.local/state}/tercio/quickstart}"
mkdir -p "$state"
state="$(cd "$state" && pwd)"
# The corpus: the documents, and the comments of the headers.
{
  find . -name '*.h' -not -path './.git/*' -print0 | sort -z | xargs -0 sed -n 's|^ *// \{0,1\}||p'
  cat README.md ARCHITECTURE.md CONTRIBUTING.md docs/*.md
} > "$state/corpus.txt"

# Progress goes to the terminal, the finished job to a file.
code=0
./bin/tercio run deploy/quickstart.yaml --state-dir "$state" --set data.train="$state/corpus.txt" "$@" \
  -o json > "$state/job.json" || code=$?
if [[ "$code" -ne 0 ]]; then
  echo "error: the job did not succeed (exit code $code); logs: ./bin/tercio list --state-dir $state" >&2
  exit "$code"
fi

field() { python3 -c 'import json, sys
value = json.load(open(sys.argv[1]))
for key in sys.argv[2].split("."): value = value[key]
print(value)' "$state/job.json" "$1"; }
job="$(field id)"
checkpoint="$(field checkpoint.path)"
validation="$(./bin/tercio history "$job" --state-dir "$state" -o jsonl | python3 -c 'import json, sys
losses = [step["validation_loss"] for step in map(json.loads, sys.stdin) if step.get("validation_loss") is not None]
print(f"{losses[-1]:.4f}" if losses else "none")')"

printf '\ntraining loss    %.4f\nvalidation loss  %s\nspeed            %.0f tokens/s\ncheckpoint       %s\n\n' \
  "$(field loss)" "$validation" "$(field tokens_per_second)" "$checkpoint"
echo "The model writes, after \"The \":"
./bin/tercio generate --checkpoint "$checkpoint" --prompt "The " --tokens 200 --temperature 0.8 --seed 1
echo
echo "See also: ./bin/tercio history $job --state-dir $state"
