#!/usr/bin/env bash
# A real Nsight Systems in a folder, from Debian's non-free packages. No root; the system stays as it is.
#
#   bash install_nsys.sh --dest FOLDER        prints the path of nsys as the last line
#
# Downloads about 190 MB and keeps 330 MB. Done already: prints the path and does nothing.
# Needs apt-get and dpkg on x86-64, and a Debian mirror: the one that this system uses, or DEBIAN_MIRROR=HOST/PATH.
# This nsys (2023.4) records nvtx up to 0.2.11 and CUDA up to 12.4; prefer a newer one from NVIDIA.
set -euo pipefail

NSYS_SUITE=trixie      # the Debian that has nsight-systems 2023.4
LIBRARY_SUITE=bookworm # an older one, so that its libraries run with the C library of older systems too
LAYOUT=2               # of the folder that this script makes; one of another layout is made anew
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

say() { echo "install_nsys: $*" >&2; }
fail() { say "$*"; exit 1; }

dest=
while [ $# -gt 0 ]; do
  case $1 in
    --dest) [ $# -ge 2 ] || { say "--dest needs a folder"; exit 2; }; dest=$(realpath -m -- "$2"); shift 2 ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) say "unknown argument $1; see --help"; exit 2 ;;
  esac
done
[ -n "$dest" ] || { say "name the folder with --dest"; exit 2; }

nsys=$dest/target-linux-x64/nsys
if [ "$(cat "$dest/complete" 2>/dev/null)" = "$LAYOUT" ] && "$nsys" --version >/dev/null 2>&1; then
  say "already there: $("$nsys" --version)"
  echo "$nsys"
  exit 0
fi
[ ! -e "$dest" ] || [ -e "$dest/complete" ] || [ -z "$(ls -A "$dest")" ] ||
  fail "$dest exists and was not made by this script; remove it or choose another --dest"
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || fail "Debian has nsight-systems for Linux on x86-64 only"
for tool in apt-get dpkg ldd; do
  command -v "$tool" >/dev/null || fail "$tool is missing; install Nsight Systems from NVIDIA instead"
done
mirror=${DEBIAN_MIRROR:-$(apt-get update --print-uris 2>/dev/null | sed -nE "s#^'https?://(.*/debian)/dists/.*#\1#p;T;q")}
[ -n "$mirror" ] || fail "apt uses no Debian mirror here; name one with DEBIAN_MIRROR=HOST/PATH"

mkdir -p "$(dirname "$dest")" 2>/dev/null && work=$(mktemp -d "$(dirname "$dest")/.install_nsys.XXXXXX") ||
  fail "$(dirname "$dest") cannot be written to; choose another --dest"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,debs,root,new}

# A private apt: own sources, lists and cache. The host's transport settings (a proxy, say) stay in force.
apt=(apt-get -qq
  -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null
  -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User= -o Acquire::Retries=3
  -o APT::Architecture=amd64 -o Acquire::Languages=none)

if [ -r "$KEYRING" ]; then
  trust="signed-by=$KEYRING" transport=http
else
  say "WARNING: $KEYRING is missing (package debian-archive-keyring): packages are not verified, only fetched by https"
  trust=trusted=yes transport=https
fi
for source in "$NSYS_SUITE non-free" "$LIBRARY_SUITE main"; do
  echo "deb [arch=amd64 $trust] $transport://$mirror $source" >>"$work/sources.list"
done
run() { "${apt[@]}" "$@" >"$work/log" 2>&1 || fail "apt-get $1: $(grep -m1 '^[EW]:' "$work/log" || tail -n 1 "$work/log")"; }
say "reading Debian's package lists ($mirror) ..."
run -o APT::Update::Error-Mode=any update

fetch() { # packages: download them and unpack them into root
  (cd "$work/debs" && run download "$@") || exit 1
  for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/root" && rm "$deb"; done
}

say "fetching nsight-systems (190 MB) ..."
fetch "nsight-systems/$NSYS_SUITE" "nsight-systems-target/$NSYS_SUITE"

# Debian has the two halves in two places with links between them; nsys wants them as real folders side by side.
target=$(find "$work/root/usr/lib" -type d -name target-linux-x64 -print -quit)
host=$(find "$work/root/usr/lib" -type d -name host-linux-x64 -print -quit)
[ -n "$target" ] && [ -n "$host" ] || fail "the packages are not laid out as expected"
mv "$target" "$host" "$work/new/"
host=$work/new/host-linux-x64
rm -rf "$host"/{translations,resources,Plugins,libexec,nsys-ui*} "$host"/libQt6* "$host"/libicu* "$host/libssh.so.4"
# `nsys stats` runs its reports from the host's folder, and the module that they import comes in the other package.
cp -n "$work/new/target-linux-x64/python/lib/"*.py "$host/python/lib/"

declare -A PACKAGES=([libssh.so]=libssh-4 [libssh.so.4]=libssh-4 [libpfm.so.4]=libpfm4 [libstdc++.so.6]=libstdc++6
  [libgcc_s.so.1]=libgcc-s1 [libz.so.1]=zlib1g [libcrypto.so.3]=libssl3 [libssl.so.3]=libssl3
  [libgssapi_krb5.so.2]=libgssapi-krb5-2 [libkrb5.so.3]=libkrb5-3 [libk5crypto.so.3]=libk5crypto3
  [libkrb5support.so.0]=libkrb5support0 [libcom_err.so.2]=libcom-err2 [libkeyutils.so.1]=libkeyutils1
  [libelf.so.1]=libelf1 [libdw.so.1]=libdw1)

missing_for() { LD_LIBRARY_PATH=$2 ldd "$1" | awk '/=> not found/ {print $1}' | sort -u; } # program, folder

# What a program needs and the machine lacks goes into a folder; a library that was fetched may need another one.
supply() { # program, folder
  local library file missing
  for _ in 1 2 3 4 5 6; do
    missing=$(missing_for "$1" "$2")
    [ -n "$missing" ] || return 0
    for library in $missing; do
      [ -n "${PACKAGES[$library]:-}" ] || fail "${1##*/} needs $library, which is in no package known to this script"
      say "fetching $library for ${1##*/} ..."
      fetch "${PACKAGES[$library]}/$LIBRARY_SUITE"
      file=$(find -L "$work"/root/usr/lib "$work"/root/lib -name "${library/%.so/.so.4}" -print -quit 2>/dev/null || true)
      [ -n "$file" ] || fail "the package of $library does not hold it"
      cp -L "$file" "$2/${file##*/}"
    done
  done
  fail "${1##*/} cannot run here: $(echo $missing) not found"
}

supply "$host/QdstrmImporter" "$host" # its run path ($ORIGIN) looks there
new=$work/new/target-linux-x64/nsys
if [ -n "$(missing_for "$new" "")" ]; then # nsys has no run path of its own, so a script in front of it has to say where
  mkdir "$work/new/lib"
  supply "$new" "$work/new/lib"
  mv "$new" "$new.bin"
  printf '%s\n' '#!/bin/sh' 'here=$(dirname "$(realpath "$0")")' \
    'LD_LIBRARY_PATH=$here/../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$here/nsys.bin" "$@"' >"$new"
  chmod +x "$new"
fi

say "trying it ..."
"$new" profile --trace=nvtx --sample=none --cpuctxsw=none --output="$work/try" true >"$work/log" 2>&1 &&
  "$new" export --type=sqlite --quiet=true --output="$work/try.sqlite" "$work/try.nsys-rep" >>"$work/log" 2>&1 ||
  fail "this nsys records nothing here: $(tail -n 1 "$work/log")"

echo "$LAYOUT" >"$work/new/complete"
rm -rf "$dest"
mv "$work/new" "$dest"
"$nsys" --version >&2
echo "$nsys"
