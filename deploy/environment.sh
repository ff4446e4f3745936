# Sourced by the scripts: sets the environment that Bazel and the programs expect, also in a bare container that sets
# nothing.
if [[ -z "${HOME:-}" ]]; then
  HOME="$(getent passwd "$(id -u)" | cut -d: -f6)"
  export HOME="${HOME:-/tmp}"
fi
export LC_ALL="${LC_ALL:-C.UTF-8}"
export USER="${USER:-$(id -un 2>/dev/null || echo tercio)}"
