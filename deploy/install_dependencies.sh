#!/bin/bash
# Installs the Debian 12 packages that Tercio needs, and only those that are missing: quick, and without
# root, if nothing is missing.
#   deploy/install_dependencies.sh [--tests] [--long]
# --tests adds what only ./tests/run.sh needs, --long what only its --long needs.
set -euo pipefail

packages=(
  # Bazel and the compilers
  bazel-bootstrap bazel-rules-java bazel-rules-proto g++ pkg-config
  # RPC and messages
  protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libgrpc++-dev libabsl-dev libre2-dev libssl-dev
  # state, collectives, vector code, configuration, logs
  libsqlite3-dev prometheus-cpp-dev libgloo-dev libhwy-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
  libxxhash-dev
  # targets of bazel build //...
  libgtest-dev libgmock-dev libbenchmark-dev
  # apt over https, and ps for the scripts
  ca-certificates procps
)
for option in "$@"; do
  case "$option" in
    --tests)
      packages+=(
        # source checks, reference results and test tools
        prometheus clang-format clang libclang-rt-14-dev curl git python3 python3-grpcio python3-venv openssl iproute2 sqlite3
        systemd binutils chromium
        # readers of manual pages and completions
        man-db groff-base zsh fish
      )
      ;;
    --long) packages+=(buildah clang-tidy debootstrap) ;;
    *) echo "usage: deploy/install_dependencies.sh [--tests] [--long]" >&2; exit 2 ;;
  esac
done

# Any kubectl will do.
for option in "$@"; do
  if [[ "$option" == --tests ]] && ! command -v kubectl > /dev/null; then packages+=(kubernetes-client); fi
done

installed() { [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }
missing=()
find_missing() {
  missing=()
  for package in "${packages[@]}"; do
    if ! installed "$package"; then missing+=("$package"); fi
  done
}

find_missing
if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi

if ! command -v apt-get >/dev/null; then
  echo "error: apt-get not found; Tercio is built on Debian 12, with these packages: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [[ "$(id -u)" -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "error: installing packages needs root, and sudo was not found. Run as root:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

# A service that comes with a package (prometheus) must not start on a build machine.
policy=/usr/sbin/policy-rc.d
if [[ ! -e "$policy" ]]; then
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
  "${as_root[@]}" sh -c "printf '#!/bin/sh\nexit 101\n' > $policy && chmod 755 $policy"
fi

echo "installing: ${missing[*]}" >&2
log="$(mktemp)"
apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
    apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" >>"$log" 2>&1
}
# Names the packages that no package list has, else all that are still missing.
give_up() {
  cat "$log" >&2
  local unknown=()
  for package in "${missing[@]}"; do
    if [[ -z "$(apt-cache show "$package" 2>/dev/null)" ]]; then unknown+=("$package"); fi
  done
  if [[ ${#unknown[@]} -gt 0 ]]; then
    echo "error: $1: the package lists of this machine (Debian 12 is needed) do not have ${unknown[*]}" >&2
  else
    echo "error: $1: not installed: ${missing[*]}" >&2
  fi
  exit 1
}
apt_get update || give_up "apt-get update failed (above)"
apt_get install -y --no-install-recommends "${missing[@]}" || give_up "apt-get install failed (above)"
find_missing
if [[ ${#missing[@]} -gt 0 ]]; then give_up "apt-get install reported success"; fi
rm -f "$log"
