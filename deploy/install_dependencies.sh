#!/bin/bash
# Installs the Debian packages that Tercio needs, only those that are missing. With --tests also those that
# only the tests use. Needs root (or sudo) when something is missing.
set -euo pipefail

packages=(
  bazel-bootstrap bazel-rules-java bazel-rules-proto g++ pkg-config
  protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libgrpc++-dev libabsl-dev
  prometheus-cpp-dev libsqlite3-dev libgloo-dev libhwy-dev libyaml-cpp-dev libcli11-dev libspdlog-dev
  libre2-dev libgtest-dev libgmock-dev libbenchmark-dev nlohmann-json3-dev libssl-dev ca-certificates
)
if [[ "${1:-}" == "--tests" ]]; then
  packages+=(prometheus clang-format python3 procps)
fi

missing=()
for package in "${packages[@]}"; do
  status="$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)"
  [[ "$status" == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

as_root=()
if [[ "$(id -u)" -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "error: these packages are missing, and installing them needs root: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "installing: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
# A service that a package brings (prometheus) must not start on the machine of somebody who builds.
policy=/usr/sbin/policy-rc.d
if [[ ! -e "$policy" ]]; then
  "${as_root[@]}" sh -c "printf '#!/bin/sh\nexit 101\n' > $policy && chmod +x $policy"
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  "${missing[@]}" >/dev/null
