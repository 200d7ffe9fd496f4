# Sourced by scripts that unpack Debian's packages into a folder of the checkout. Needs apt-get and dpkg, and no root.
# Uses the sources and keys of the system, with private package lists and cache.

say() { echo "$(basename "$0"): $*" >&2; }
fail() { say "$*"; exit 1; }

# read_lists PROGRAM [OPTION…]: read the package lists into `work`, a temporary folder of the caller; set `apt`.
read_lists() {
  local tool
  for tool in apt-get dpkg; do
    command -v "$tool" >/dev/null || fail "$tool is missing; install $1 in another way"
  done
  mkdir -p "$work"/{lists/partial,cache/archives/partial,debs}
  apt=(apt-get -qq -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=
    -o Acquire::Retries=3 -o Acquire::Languages=none "${@:2}")
  say "reading the package lists ..."
  "${apt[@]}" -o APT::Update::Error-Mode=any update >"$work/log" 2>&1 ||
    fail "cannot read the package lists: $(grep -m1 '^[EW]:' "$work/log" || tail -n 1 "$work/log")"
}

# fetch FOLDER PACKAGE…: download and unpack packages into FOLDER, after read_lists.
fetch() {
  local deb
  mkdir -p "$1"
  (cd "$work/debs" && "${apt[@]}" download "${@:2}") >"$work/log" 2>&1 ||
    fail "cannot fetch ${*:2}: $(grep -m1 '^E:' "$work/log" || tail -n 1 "$work/log")"
  for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$1" && rm "$deb"; done
}

# unpack FOLDER PACKAGE…: unpack packages and their missing dependencies into FOLDER.
unpack() {
  local packages
  read_lists "$2"
  mapfile -t packages < <("${apt[@]}" install --simulate --no-install-recommends "${@:2}" 2>"$work/log" |
    sed -n 's/^Inst \([^ ]*\) .*/\1/p')
  [ "${#packages[@]}" -gt 0 ] || packages=("${@:2}")
  say "fetching $2 and its dependencies (${#packages[@]} packages) ..."
  fetch "$1" "${packages[@]}"
}
