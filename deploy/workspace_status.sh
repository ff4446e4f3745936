#!/bin/bash
# Prints the entries of Bazel's status file for the VERSION of //deploy:tarball: the commit that is built.
set -uo pipefail
git() { command git -c safe.directory="$PWD" "$@" 2>/dev/null; }
if commit="$(git rev-parse HEAD)"; then
  if [[ -n "$(git status --porcelain --untracked-files=no)" ]]; then commit+=" with changes"; fi
  echo "STABLE_TERCIO_COMMIT $commit"
  echo "STABLE_TERCIO_COMMIT_SECONDS $(git show -s --format=%ct HEAD)"
fi
