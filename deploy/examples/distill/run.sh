#!/bin/bash
# Trains the model of ../chat, and a smaller one that learns from it; beside that one, the same model that learns from the
# conversations alone.
#   deploy/examples/distill/run.sh
# `tercio` is found on the path; what is written lies in this directory: state, teacher, curves.svg.
set -euo pipefail
cd "$(dirname "$0")"

if [[ ! -d teacher ]]; then
  tercio run ../chat/chat.yaml --state-dir state
  tercio checkpoint export lighthouse --state-dir state --format hf --output teacher
fi
tercio run distill.yaml --state-dir state
tercio run distill.yaml --state-dir state --set name=alone --set training.objective=sft --set training.distillation=null
tercio plot apprentice --state-dir state --metric teacher_kl,cross_entropy,validation_teacher_kl --output curves.svg
