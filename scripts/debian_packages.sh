# Sourced by the scripts that unpack Debian's packages into a folder of the checkout. No root; the system stays as it is.
# Needs apt-get and dpkg. Sources, keys and transport are the system's; package lists and cache are private.

say() { echo "$(basename "$0"): $*" >&2; }
fail() { say "$*"; exit 1; }

# unpack FOLDER PACKAGE…: the packages, and what they need beyond what the system has, into FOLDER.
# `work` is a folder that the caller removes in the end; FOLDER may lie in it.
unpack() {
  local folder=$1 tool deb apt packages
  shift
  for tool in apt-get dpkg; do
    command -v "$tool" >/dev/null || fail "$tool is missing; install $1 by other means"
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
  say "fetching $1 and what it needs (${#packages[@]} packages) ..."
  (cd "$work/debs" && "${apt[@]}" download "${packages[@]}") >"$work/log" 2>&1 ||
    fail "the packages could not be fetched: $(grep -m1 '^E:' "$work/log" || tail -n 1 "$work/log")"
  for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$folder" && rm "$deb"; done
}
