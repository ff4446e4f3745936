#!/bin/bash
# Makes a Python environment with tests/python/requirements.txt in the user's cache, once for each content
# of that file, and prints the path of its interpreter. Ends with 1, and says why, when PyPI cannot be
# reached.
set -euo pipefail
cd "$(dirname "$0")"
python=/usr/bin/python3
key="$(cat requirements.txt <("$python" --version) | sha256sum | cut -c1-16)"
directory="${XDG_CACHE_HOME:-$HOME/.cache}/tercio-python/$key"
if [[ ! -e "$directory/complete" ]]; then
  mkdir -p "$directory"
  exec 9>"$directory/lock"
  flock 9  # another test makes it
  if [[ ! -e "$directory/complete" ]]; then
    "$python" -m venv --clear "$directory/venv" >&2
    "$directory/venv/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt >&2
    touch "$directory/complete"
  fi
fi
echo "$directory/venv/bin/python"
