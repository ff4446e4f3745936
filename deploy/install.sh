#!/bin/bash
# Installs Tercio like a package: programs, libraries, systemd units, documents, example configuration.
#   deploy/install.sh [--prefix /usr/local] [--sysconfdir DIR] [--from TARBALL|TREE]
#   deploy/install.sh [--prefix /usr/local] --uninstall [--purge]
# --from: a tarball of //deploy:tarball, or a tree: an unpacked tarball, or the repository after ./deploy/build.sh. The default is
# the tree that contains this script. DESTDIR, if set, is put before every path. Existing configuration (--sysconfdir; /etc/tercio
# for prefixes below /usr and /opt, else PREFIX/etc/tercio) is never changed, and is kept by --uninstall without --purge.
#
# Installing over an old version is an upgrade: each file is replaced by one rename, so that running programs keep their files; files
# that the new version does not have are removed. Needs only coreutils, sed and tar.
set -euo pipefail

# The script of an installation (PREFIX/lib/tercio/install.sh) operates on that installation.
here="$(cd "$(dirname "$0")" && pwd)"
prefix=/usr/local sysconfdir="" from="" uninstall=no purge=no
if [[ -z "${DESTDIR:-}" && -e "$here/manifest" && "$here" == */lib/tercio ]]; then prefix="${here%/lib/tercio}"; fi
usage() { sed -n '3,4s/^# *//p' "$0"; }
while [[ $# -gt 0 ]]; do
  case "$1" in
    --prefix) prefix="${2:?--prefix needs a directory}"; shift 2 ;;
    --sysconfdir) sysconfdir="${2:?--sysconfdir needs a directory}"; shift 2 ;;
    --from) from="${2:?--from needs a tarball or a tree}"; shift 2 ;;
    --uninstall) uninstall=yes; shift ;;
    --purge) purge=yes; shift ;;
    -h|--help) usage; exit 0 ;;
    *) echo "error: install.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
done
fail() { echo "error: install.sh: $1" >&2; exit "${2:-1}"; }
[[ "$prefix" == /* ]] || fail "--prefix $prefix: not an absolute path" 2
[[ "$purge" == no || "$uninstall" == yes ]] || fail "--purge is only valid with --uninstall" 2
prefix="${prefix%/}"
if [[ -z "$sysconfdir" ]]; then
  case "$prefix/" in /usr/*|/opt/*) sysconfdir=/etc/tercio ;; *) sysconfdir="$prefix/etc/tercio" ;; esac
fi
[[ "$sysconfdir" == /* ]] || fail "--sysconfdir $sysconfdir: not an absolute path" 2
for path in "$prefix" "$sysconfdir"; do
  # They are inserted into units and into sed patterns.
  [[ "$path" =~ ^[A-Za-z0-9/._+-]*$ ]] || fail "$path: paths may contain only letters, digits and / . _ + -" 2
done
root="${DESTDIR:-}"
home="$prefix/lib/tercio"
manifest="$home/manifest"

# The lines of a manifest are "file PATH", "config PATH" and "link PATH", without DESTDIR.
remove_file() { rm -f "$root$1"; }
remove_empty_parents() {
  local folder
  folder="$(dirname "$1")"
  while [[ "$folder" != / && "$folder" != "$prefix" ]] && rmdir "$root$folder" 2>/dev/null; do folder="$(dirname "$folder")"; done
}
old_entries() { if [[ -e "$root$manifest" ]]; then cat "$root$manifest"; fi; }

# Checked before anything is changed, so that no half installation is left behind.
for path in "$prefix" "$sysconfdir"; do
  there="$root$path"
  while [[ -n "$there" && ! -e "$there" ]]; do there="${there%/*}"; done
  [[ -w "${there:-/}" ]] || fail "${there:-/} is not writable for $(id -un): run this as root, or choose another --prefix or DESTDIR"
done

if [[ "$uninstall" == yes ]]; then
  [[ -e "$root$manifest" ]] || fail "nothing is installed at $root$prefix: $manifest does not exist" 3
  entries="$(old_entries)"
  while read -r kind path; do
    case "$kind" in
      file|link) remove_file "$path" ;;
      config) if [[ "$purge" == yes ]]; then remove_file "$path"; fi ;;
      folder) ;;
    esac
  done <<< "$entries"
  remove_file "$manifest"
  while read -r kind path; do
    if [[ "$kind" == folder ]]; then
      if [[ "$purge" == yes && -d "$root$path" ]]; then rmdir --ignore-fail-on-non-empty "$root$path"; fi
    fi
    remove_empty_parents "$path"
  done <<< "$entries"
  remove_empty_parents "$manifest"
  echo "removed Tercio from $root$prefix"
  if [[ "$purge" == no ]]; then echo "configuration is kept in $root$sysconfdir (--purge removes it)"; fi
  echo "state is kept in /var/lib/tercio and /var/lib/tercio-agent"
  exit 0
fi

# ---- what is installed ----

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
if [[ -z "$from" ]]; then from="$(dirname "$here")"; fi
[[ -e "$from" ]] || fail "--from $from does not exist" 3
if [[ -f "$from" ]]; then
  mkdir "$scratch/unpacked"
  tar -xf "$from" -C "$scratch/unpacked" || fail "cannot unpack $from"
  from="$scratch/unpacked/tercio"
fi
for program in tercio tercio-coordinator tercio-agent tercio-trainer; do
  [[ -x "$from/bin/$program" ]] || fail "$from has no bin/$program: give a tarball with --from, or run ./deploy/build.sh first"
done

entries="$scratch/entries"
: > "$entries"
# Puts a file in its place in one rename: from, path, mode, kind.
put() {
  mkdir -p "$root$(dirname "$2")"
  local part="$root$2.part.$$"
  cp -L "$1" "$part"
  chmod "$3" "$part"
  mv -f "$part" "$root$2"
  echo "${4:-file} $2" >> "$entries"
}
put_link() {
  mkdir -p "$root$(dirname "$2")"
  ln -sfn "$1" "$root$2.part.$$"
  mv -fT "$root$2.part.$$" "$root$2"
  echo "link $2" >> "$entries"
}
# Fills in the paths of this installation.
put_template() {
  sed -e "s|@BINDIR@|$prefix/bin|g" -e "s|@SYSCONFDIR@|$sysconfdir|g" -e "s|@DOCDIR@|$prefix/share/doc/tercio|g" "$1" > "$scratch/template"
  put "$scratch/template" "$2" 644
}

# Programs find their libraries in ../lib of their own directory, also when they are started through a link.
for name in tercio tercio-coordinator tercio-agent tercio-trainer tercio-trainer-cuda; do
  program="$from/bin/$name"
  if [[ ! -e "$program" ]]; then continue; fi  # the trainer for GPUs, if no toolkit was found
  cp -L "$program" "$scratch/program"
  # Programs of a build tree contain the names of its sources for debuggers.
  if command -v strip > /dev/null; then chmod u+w "$scratch/program"; strip --strip-debug "$scratch/program"; fi
  put "$scratch/program" "$home/bin/$name" 755
  put_link "../lib/tercio/bin/$name" "$prefix/bin/$name"
done
# Lists the files of a folder whose names match a pattern: folder, pattern...
files_named() {
  local folder="$1" names=()
  shift
  if [[ ! -d "$from/$folder" ]]; then return 0; fi
  for pattern in "$@"; do names+=(-o -name "$pattern"); done
  find -L "$from/$folder" -mindepth 1 -maxdepth 1 -type f \( "${names[@]:1}" \) ! -name '.*' -printf '%f\0' | sort -z
}
while IFS= read -r -d '' library; do
  put "$from/lib/$library" "$home/lib/$library" 644
done < <(files_named lib '*.so' '*.so.*[0-9]')
# NVIDIA's package for forward compatibility, if somebody has put it there: a folder of its own, since a driver must come first that is
# new enough.
while IFS= read -r -d '' library; do
  put "$from/lib/compat/$library" "$home/lib/compat/$library" 644
done < <(files_named lib/compat '*.so.*[0-9]')

for unit in tercio-coordinator.service tercio-agent.service; do
  put_template "$from/deploy/systemd/$unit" "$prefix/lib/systemd/system/$unit"
done
put_template "$from/deploy/systemd/tercio.sysusers" "$prefix/lib/sysusers.d/tercio.conf"
put_template "$from/deploy/systemd/tercio.tmpfiles" "$prefix/lib/tmpfiles.d/tercio.conf"

# Documents, and this script itself, for --uninstall. licenses/, LICENSES and VERSION are in tarballs only.
doc="$prefix/share/doc/tercio"
put "$from/deploy/install.sh" "$home/install.sh" 755
for file in README.md ARCHITECTURE.md CHANGELOG.md SECURITY.md LICENSE LICENSES VERSION; do
  if [[ -e "$from/$file" ]]; then put "$from/$file" "$doc/$file" 644; fi
done
# Selected by kind, since a folder may also contain leftovers of an editor or of Python. deploy/BUILD.bazel has the same list
# for the tarball; a test compares the results.
while read -r folder patterns; do
  read -r -a names <<< "$patterns"
  while IFS= read -r -d '' file; do
    put "$from/$folder/$file" "$doc/$folder/$file" 644
  done < <(files_named "$folder" "${names[@]}")
done << 'DOCUMENTS'
dashboards *.json *.py
deploy/etc *.yaml
deploy/examples *.yaml
deploy/examples/chat *.jsonl *.yaml
deploy/examples/distill *.sh *.yaml
deploy/examples/dpo *.jsonl *.yaml
deploy/examples/lora *.jsonl *.sh *.yaml
deploy/examples/sst2 *.md *.py *.yaml
deploy/grafana/provisioning/dashboards *.yaml
deploy/grafana/provisioning/datasources *.yaml
deploy/kubernetes/base *.yaml
deploy/kubernetes/monitoring *.yaml
deploy/kubernetes/overlays/cpu-demo *.yaml
deploy/kubernetes/overlays/gpu *.yaml
deploy/prometheus *.yml
deploy/prometheus/rules *.yml
docs *.md
docs/decisions *.md
docs/images *.svg *.png
licenses *[a-z0-9]
DOCUMENTS
# Manual pages; the programs of a repository print their own.
pages="$from/man"
if [[ ! -d "$pages" ]]; then
  pages="$scratch/man"
  mkdir -p "$pages/man8"
  "$from/bin/tercio" man --output "$pages/man1"
  for daemon in tercio-coordinator tercio-agent; do "$from/bin/$daemon" --man > "$pages/man8/$daemon.8"; done
fi
while IFS= read -r -d '' page; do
  put "$pages/$page" "$prefix/share/man/$page" 644
done < <(find -L "$pages/" -mindepth 2 -maxdepth 2 -type f -name 'tercio*.[1-8]' -printf '%P\0' | sort -z)
for shell in "bash bash-completion/completions/tercio" "zsh zsh/site-functions/_tercio" "fish fish/vendor_completions.d/tercio.fish"; do
  read -r name place <<< "$shell"
  if "$from/bin/tercio" completion "$name" > "$scratch/completion" 2> /dev/null; then put "$scratch/completion" "$prefix/share/$place" 644; fi
done

# Existing configuration belongs to the operator.
for name in coordinator agent; do
  if [[ -e "$root$sysconfdir/$name.yaml" ]]; then
    echo "config $sysconfdir/$name.yaml" >> "$entries"
  else
    put "$from/deploy/etc/$name.yaml" "$sysconfdir/$name.yaml" 644 config
  fi
  install -d -m 700 "$root$sysconfdir/credentials/$name"
done
printf 'folder %s\n' "$sysconfdir/credentials/coordinator" "$sysconfdir/credentials/agent" "$sysconfdir/credentials" >> "$entries"
chmod 700 "$root$sysconfdir/credentials"

# Removes the files of the previous version that this one does not have.
while read -r kind path; do
  if [[ "$kind" == file || "$kind" == link ]] && ! grep -qxF "$kind $path" "$entries"; then
    remove_file "$path"
    remove_empty_parents "$path"
  fi
done < <(old_entries)
put "$entries" "$manifest" 644
# The manifest does not list itself: it is removed by name.

echo "installed $("$from/bin/tercio" version 2> /dev/null || echo Tercio) in $root$prefix"
if [[ -n "$root" ]]; then exit 0; fi
cat << NEXT
Next, on the machine of the coordinator (as root):
  systemd-sysusers $prefix/lib/sysusers.d/tercio.conf
  systemd-tmpfiles --create $prefix/lib/tmpfiles.d/tercio.conf
  systemctl daemon-reload
  \$EDITOR $sysconfdir/coordinator.yaml
  systemctl enable --now tercio-coordinator
and on each node the same with agent.yaml and tercio-agent. After an upgrade:
  systemctl daemon-reload; systemctl restart tercio-coordinator; systemctl restart tercio-agent
NEXT
case "$prefix" in
  /usr|/usr/local) ;;
  *) echo "systemd does not search for units below $prefix; first run: systemctl link $prefix/lib/systemd/system/tercio-{coordinator,agent}.service" ;;
esac
