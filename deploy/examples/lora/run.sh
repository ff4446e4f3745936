#!/bin/bash
# Trains the model of ../chat, exports it to ./base, tunes an adapter beside it, and lets both answer.
#   deploy/examples/lora/run.sh [lora.yaml | qlora.yaml]
# `tercio` is found on the path; what is written lies in this directory: state, base, adapter.
set -euo pipefail
cd "$(dirname "$0")"
job="${1:-lora.yaml}"
question=$'<|im_start|>user\nWhen does the lock open?<|im_end|>\n<|im_start|>assistant\n'

if [[ ! -d base ]]; then
  tercio run ../chat/chat.yaml --state-dir state
  tercio checkpoint export lighthouse --state-dir state --format hf --output base
fi
tercio run "$job" --state-dir state
rm -rf adapter
name="$(sed -n 's/^name: //p' "$job")"
tercio checkpoint export "$name" --state-dir state --format peft --output adapter
for model in base adapter; do
  echo "== $model"
  tercio generate --checkpoint "$model" --prompt "$question" --tokens 40 --temperature 0
done
