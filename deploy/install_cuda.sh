#!/bin/bash
# Installs NVIDIA's toolkit and libraries from PyPI into one directory, for machines that lack them: compiler, runtime, cuBLASLt,
# cuDNN with NVRTC, which it compiles with, and NCCL (1.2 GB to download, 1.7 GB on disk). The driver is not included: CUDA 13 needs
# branch 580 or newer (docs/operations.md, "Drivers"). Needs no root.
#   deploy/install_cuda.sh [--prefix DIR] [--force]
# Then: CUDA_HOME=DIR ./deploy/build.sh. Does nothing if CUDA_HOME or /usr/local/cuda has a toolkit, unless --force.
set -euo pipefail

prefix="$HOME/.local/share/tercio/cuda"
force=no
while [[ $# -gt 0 ]]; do
  case "$1" in
    --prefix) prefix="${2:?--prefix needs a directory}"; shift 2 ;;
    --force) force=yes; shift ;;
    *) echo "usage: deploy/install_cuda.sh [--prefix DIR] [--force]" >&2; exit 2 ;;
  esac
done

# A set of versions that was built and tested together.
packages=(
  nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-nvrtc==13.0.88 nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.1.2 nvidia-nccl-cu13==2.28.9
  nvidia-nvtx==13.0.85
)

if [[ "$force" == no ]]; then
  for home in "${CUDA_HOME:-}" /usr/local/cuda; do
    if [[ -n "$home" && -x "$home/bin/nvcc" ]]; then
      echo "$home already has a toolkit: $("$home/bin/nvcc" --version | grep release)"
      exit 0
    fi
  done
fi
if [[ -e "$prefix" ]]; then echo "error: $prefix exists; remove it, or give another --prefix" >&2; exit 1; fi
python3 -m pip --version > /dev/null || { echo "error: pip is missing: apt-get install python3-pip" >&2; exit 1; }

wheels="$(mktemp -d)"
trap 'rm -rf "$wheels"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$wheels" \
  --platform manylinux2010_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_18_x86_64 \
  --platform manylinux_2_27_x86_64 "${packages[@]}"

# nvidia/<part>/{bin,include,lib,nvvm} of every wheel becomes {bin,include,lib,nvvm}; libraries get the names that linkers look for.
mkdir -p "$(dirname "$prefix")"
python3 - "$wheels" "$prefix.part" <<'PYTHON'
import os
import re
import stat
import sys
import zipfile

wheels, prefix = sys.argv[1:]
for wheel in sorted(os.listdir(wheels)):
    with zipfile.ZipFile(os.path.join(wheels, wheel)) as archive:
        for entry in archive.infolist():
            found = re.fullmatch(r"nvidia/[^/]+/((bin|include|lib|nvvm)/.+[^/])", entry.filename)
            if not found or ".." in entry.filename.split("/"):
                continue
            path = os.path.join(prefix, found.group(1))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with archive.open(entry) as source, open(path, "wb") as target:
                while block := source.read(1 << 20):
                    target.write(block)
            if entry.external_attr >> 16 & stat.S_IXUSR:
                os.chmod(path, 0o755)
libraries = os.path.join(prefix, "lib")
for name in os.listdir(libraries):
    plain = re.sub(r"\.so\..*", ".so", name)
    if plain != name and not os.path.exists(os.path.join(libraries, plain)):
        os.symlink(name, os.path.join(libraries, plain))
PYTHON
mv "$prefix.part" "$prefix"
"$prefix/bin/nvcc" --version | grep release
echo "installed; build with: CUDA_HOME=$prefix ./deploy/build.sh"
