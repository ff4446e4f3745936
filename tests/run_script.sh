#!/bin/bash
# Runs a script of the tests as a Bazel test (bazel/script_test.bzl), on a tree that holds what the target declares and nothing
# else, so that Bazel knows everything that the outcome depends on: sources are copied, what was built lies below bazel-bin, and
# the programs in bin, as in a repository after deploy/build.sh.
#   run_script.sh SCRIPT      a path below the top of the repository
set -euo pipefail
source deploy/environment.sh
# Tools that make networks and file systems.
export PATH="$PATH:/usr/sbin:/sbin"
# Bazel's own folder for temporary files has a name that is too long for the address of a socket.
unset TMPDIR

tree="$TEST_TMPDIR/tree"
mkdir -p "$tree/bin" "$tree/bazel-bin"
while IFS= read -r -d '' file; do
  file="${file#./}"
  real="$(readlink -f "$file")"
  if [[ "$real" == */bazel-out/* ]]; then
    mkdir -p "$tree/bazel-bin/${file%/*}"
    ln -s "$real" "$tree/bazel-bin/$file"
    name="${file##*/}"
    case "$name" in tercio | tercio-coordinator | tercio-agent | tercio-trainer | tercio-trainer-cuda) ln -s "$real" "$tree/bin/$name" ;; esac
  else
    mkdir -p "$tree/$(dirname "$file")"
    cp "$real" "$tree/$file"
  fi
done < <(find -L . -type f -print0)

cd "$tree"
exec python3 "$tree/$1"
