# Sourced by scripts that unpack Debian's packages into a folder of the checkout. Needs apt-get and dpkg, and no root.
# Uses the sources and keys of the system, with private package lists and cache.

say() { echo "$(basename "$0"): $*" >&2; }
fail() { say "$*"; exit 1; }

# unpack FOLDER PACKAGE…: unpack packages and their missing dependencies into FOLDER.
# `work` is a temporary folder of the caller; FOLDER may be in it.
unpack() {
  local folder=$1 tool deb apt packages
  shift
  for tool in apt-get dpkg; do
    command -v "$tool" >/dev/null || fail "$tool is missing; install $1 in another way"
  done
  mkdir -p "$work"/{lists/partial,cache/archives/partial,debs} "$folder"
  apt=(apt-get -qq -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=
    -o Acquire::Retries=3 -o Acquire::Languages=none)
  say "reading the package lists ..."
  "${apt[@]}" -o APT::Update::Error-Mode=any update >"$work/log" 2>&1 ||
    fail "the package lists cannot be read ($(grep -m1 '^[EW]:' "$work/log" || tail -n 1 "$work/log"))"
  mapfile -t packages < <("${apt[@]}" install --simulate --no-install-recommends "$@" 2>"$work/log" |
    sed -n 's/^Inst \([^ ]*\) .*/\1/p')
  [ "${#packages[@]}" -gt 0 ] || packages=("$@")
  say "fetching $1 and its dependencies (${#packages[@]} packages) ..."
  (cd "$work/debs" && "${apt[@]}" download "${packages[@]}") >"$work/log" 2>&1 ||
    fail "the packages could not be fetched: $(grep -m1 '^E:' "$work/log" || tail -n 1 "$work/log")"
  for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$folder" && rm "$deb"; done
}
