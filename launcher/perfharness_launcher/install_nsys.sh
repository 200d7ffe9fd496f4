#!/usr/bin/env bash
# A real Nsight Systems in a folder, from Debian's non-free packages. No root; the system stays as it is.
#
#   bash install_nsys.sh --dest FOLDER        prints the path of nsys as the last line
#
# About 190 MB are downloaded and 330 MB kept. Done already: prints the path and does nothing.
# Needs apt-get and dpkg on x86-64, and a Debian mirror: the one that this system uses, or DEBIAN_MIRROR=HOST/PATH.
# This nsys (2023.4) records nvtx up to 0.2.11 and CUDA up to 12.4; a newer one from NVIDIA is better where it can be had.
set -euo pipefail

NSYS_SUITE=trixie      # the Debian that has nsight-systems 2023.4
LIBRARY_SUITE=bookworm # an older one, so that its libraries run with the C library of older systems too
OLD_NVTX=0.2.11
LAYOUT=2 # of the folder that this script makes; one of another layout is made anew
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

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] ||
  fail "Debian has nsight-systems for Linux on x86-64 only, and this is $(uname -s) on $(uname -m)"
for tool in apt-get dpkg ldd; do
  command -v "$tool" >/dev/null ||
    fail "$tool is missing, so Debian's packages cannot be unpacked here; install Nsight Systems from NVIDIA instead"
done

mirror_of_this_system() {
  apt-get update --print-uris 2>/dev/null | sed -nE "s#^'https?://(.*/debian)/dists/.*#\1#p" | head -n 1
}
MIRROR=${DEBIAN_MIRROR:-$(mirror_of_this_system)}
[ -n "$MIRROR" ] ||
  fail "this system's apt uses no Debian mirror; name one with DEBIAN_MIRROR=HOST/PATH, or install Nsight Systems from NVIDIA"

mkdir -p "$(dirname "$dest")" 2>/dev/null && work=$(mktemp -d "$(dirname "$dest")/.install_nsys.XXXXXX") ||
  fail "$(dirname "$dest") cannot be written to; choose another --dest"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,debs,root,new}

# A private apt: own sources, lists and cache. The host's transport settings (a proxy, say) stay in force.
apt=(apt-get -qq
  -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null
  -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User= -o Acquire::Retries=3
  -o APT::Architecture=amd64 -o Acquire::Languages=none)

write_sources() { # how to trust, transport
  echo "deb [arch=amd64 $1] $2://$MIRROR $NSYS_SUITE non-free" >"$work/sources.list"
  echo "deb [arch=amd64 $1] $2://$MIRROR $LIBRARY_SUITE main" >>"$work/sources.list"
}

update() {
  rm -rf "$work/lists"; mkdir -p "$work/lists/partial"
  "${apt[@]}" -o APT::Update::Error-Mode=any update >"$work/log" 2>&1
}

say "reading Debian's package lists ($MIRROR) ..."
if [ -r "$KEYRING" ] && write_sources "signed-by=$KEYRING" http && update; then
  :
elif [ -r "$KEYRING" ] && ! grep -qE 'NO_PUBKEY|not signed|EXPKEYSIG|KEYEXPIRED|verif' "$work/log"; then
  fail "Debian's packages cannot be reached at $MIRROR ($(grep -m1 '^[EW]:' "$work/log" || tail -n 1 "$work/log"))"
else
  say "WARNING: the packages cannot be verified, for $KEYRING is missing or too old (package debian-archive-keyring);"
  say "WARNING: they are fetched over https instead, so all that vouches for them is the certificate of ${MIRROR%%/*}"
  write_sources trusted=yes https
  update || fail "Debian's packages cannot be reached at $MIRROR ($(grep -m1 '^[EW]:' "$work/log" || tail -n 1 "$work/log"))"
fi

fetch() { # packages: download them and unpack them into root
  (cd "$work/debs" && "${apt[@]}" download "$@") >"$work/log" 2>&1 ||
    { say "$* could not be fetched: $(grep -m1 '^E:' "$work/log" || tail -n 1 "$work/log")"; return 1; }
  local deb
  for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/root" && rm "$deb"; done
}

say "fetching nsight-systems (190 MB) ..."
fetch "nsight-systems/$NSYS_SUITE" "nsight-systems-target/$NSYS_SUITE" || exit 1

# Debian has the two halves in two places with links between them; nsys wants them as real folders side by side.
target=$(find "$work/root/usr/lib" -type d -name target-linux-x64 -print -quit)
host=$(find "$work/root/usr/lib" -type d -name host-linux-x64 -print -quit)
[ -n "$target" ] && [ -n "$host" ] || fail "the packages are not laid out as expected; was nsight-systems changed in Debian?"
mv "$target" "$host" "$work/new/"
host=$work/new/host-linux-x64
rm -rf "$host"/{translations,resources,Plugins,libexec,nsys-ui*} "$host"/libQt6* "$host"/libicu* "$host/libssh.so.4"
# `nsys stats` runs its reports from the host's folder, and the module that they import comes in the other package.
cp -n "$work/new/target-linux-x64/python/lib/"*.py "$host/python/lib/"

package_of() { # the package of Debian bookworm that a library is in
  case $1 in
    libssh.so | libssh.so.4) echo libssh-4 ;;
    libpfm.so.4) echo libpfm4 ;;
    libstdc++.so.6) echo libstdc++6 ;;
    libgcc_s.so.1) echo libgcc-s1 ;;
    libz.so.1) echo zlib1g ;;
    libcrypto.so.3 | libssl.so.3) echo libssl3 ;;
    libgssapi_krb5.so.2) echo libgssapi-krb5-2 ;;
    libkrb5.so.3) echo libkrb5-3 ;;
    libk5crypto.so.3) echo libk5crypto3 ;;
    libkrb5support.so.0) echo libkrb5support0 ;;
    libcom_err.so.2) echo libcom-err2 ;;
    libkeyutils.so.1) echo libkeyutils1 ;;
    libelf.so.1) echo libelf1 ;;
    libdw.so.1) echo libdw1 ;;
    *) return 1 ;;
  esac
}

missing_for() { ldd "$1" | awk '/=> not found/ {print $1}' | sort -u; }

# What a program needs and the machine lacks goes into a folder. A library that was fetched may need another one, so
# ask until nothing is missing.
supply() { # program, folder
  local library file missing packages
  for _ in 1 2 3 4 5 6; do
    missing=$(LD_LIBRARY_PATH=$2 missing_for "$1")
    [ -n "$missing" ] || break
    packages=()
    for library in $missing; do
      packages+=("$(package_of "$library")/$LIBRARY_SUITE") ||
        fail "${1##*/} needs $library, which is not here and in no package known to this script"
    done
    say "fetching what ${1##*/} needs and this machine lacks:" $missing
    mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
    fetch "${packages[@]}" || exit 1
    for library in $missing; do
      file=$(find -L "$work"/root/usr/lib "$work"/root/lib -name "${library/%.so/.so.4}" -print -quit 2>/dev/null || true)
      [ -n "$file" ] || fail "the package of $library does not hold it"
      cp -L "$file" "$2/${file##*/}"
    done
  done
  [ -z "$missing" ] || fail "${1##*/} cannot run here: $(echo $missing) not found"
  if LD_LIBRARY_PATH=$2 ldd "$1" 2>&1 | grep 'version .* not found' >"$work/log"; then
    fail "${1##*/} cannot run here: $(head -n 1 "$work/log")"
  fi
}

supply "$host/QdstrmImporter" "$host" # its run path ($ORIGIN) looks there
new=$work/new/target-linux-x64/nsys
if [ -n "$(missing_for "$new")" ]; then # nsys has no run path of its own, so a script in front of it has to say where
  mkdir "$work/new/lib"
  supply "$new" "$work/new/lib"
  mv "$new" "$new.bin"
  printf '%s\n' '#!/bin/sh' 'here=$(dirname "$(realpath "$0")")' \
    'LD_LIBRARY_PATH=$here/../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$here/nsys.bin" "$@"' >"$new"
  chmod +x "$new"
fi

# The proof: trace a program with two NVTX ranges and count them in the export.
say "trying it ..."
python=${PYTHON:-python3}
program='print("no nvtx")'
if command -v "$python" >/dev/null; then
  if "$python" -m pip install -q --disable-pip-version-check --target "$work/site" "nvtx==$OLD_NVTX" >"$work/log" 2>&1; then
    program='import nvtx
for _ in range(2):
    with nvtx.annotate("range"): pass'
  else
    say "nvtx $OLD_NVTX cannot be had for $("$python" --version 2>&1), so this nsys is tried without ranges"
  fi
  command=("$python" -c "$program")
else
  command=(true)
fi
PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH} "$new" profile --trace=nvtx --sample=none --cpuctxsw=none \
  --output="$work/try" "${command[@]}" >"$work/log" 2>&1 && [ -s "$work/try.nsys-rep" ] ||
  fail "this nsys records nothing here: $(tr '\r' '\n' <"$work/log" | grep -iE 'error|fail|not' | tail -n 1)"
"$new" export --type=sqlite --quiet=true --output="$work/try.sqlite" "$work/try.nsys-rep" >>"$work/log" 2>&1 ||
  fail "this nsys cannot export here: $(tail -n 1 "$work/log")"
if [ -d "$work/site" ]; then
  ranges=$("$python" - "$work/try.sqlite" <<'PY'
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 59").fetchone()[0])
PY
  ) || ranges=0
  [ "$ranges" = 2 ] || fail "this nsys recorded $ranges of 2 ranges"
  say "2 of 2 ranges recorded, imported and exported"
fi

echo "$LAYOUT" >"$work/new/complete"
rm -rf "$dest"
mv "$work/new" "$dest"
"$nsys" --version >&2
echo "$nsys"
