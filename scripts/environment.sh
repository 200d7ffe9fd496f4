# Sourced by scripts/demo and scripts/test: find a Python and make a virtual environment.
# PYTHON names the interpreter; the default is the first one on PATH that is new enough.

export PERFHARNESS_HISTORY=off

fail() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

is_new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON was not found; give the path of a Python 3.10 or newer"
    is_new_enough "$PYTHON" || fail "$PYTHON is $("$PYTHON" --version 2>&1); perfharness needs Python 3.10 or newer"
    return
  fi
  for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
    if is_new_enough "$candidate"; then
      PYTHON=$candidate
      return
    fi
  done
  fail "no Python 3.10 or newer on PATH (python3: $(python3 --version 2>&1 || true)); install one, or give its path:" \
    "PYTHON=/path/to/python3.12 scripts/$(basename "$0")"
}

# make_environment FOLDER FILE…: make a virtual environment, again if its Python or a FILE has changed.
# Sets `fresh` to yes if packages must be installed; call mark_environment after that.
make_environment() {
  local folder=$1 version
  shift
  version=$("$PYTHON" -c 'import sys; print(sys.executable, *sys.version_info[:3])')
  stamp=$(printf '%s\n' "$version" | cat - "$@" | cksum)
  fresh=no
  [ "$(cat "$folder/perfharness-stamp" 2>/dev/null)" = "$stamp" ] && return
  fresh=yes
  "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || fail "$PYTHON lacks the module venv or ensurepip." \
    "On Debian and Ubuntu: apt install python3-venv. Or use another Python: PYTHON=…"
  "$PYTHON" -m venv --clear "$folder" || fail "$PYTHON could not make a virtual environment in $folder; see above"
}

mark_environment() {
  echo "$stamp" >"$1/perfharness-stamp"
}

# install FOLDER ARGUMENTS…: install packages into the environment in FOLDER, by uv (six times faster), else by pip,
# which also reads pip's settings. Modules are compiled on first import, because half of torch is never imported.
install() {
  local python=$1/bin/python uv=$1/bin/uv pip=(-m pip install --quiet --disable-pip-version-check --no-compile)
  shift
  [ -x "$uv" ] || "$python" "${pip[@]}" uv 2>/dev/null || true
  UV_FIND_LINKS=${PIP_FIND_LINKS:-} UV_DEFAULT_INDEX=${PIP_INDEX_URL:-https://pypi.org/simple} \
    "$uv" pip install --quiet --no-cache --python "$python" "$@" 2>/dev/null || "$python" "${pip[@]}" "$@" ||
    fail "cannot install the packages (see above); check the access to a package index"
}
