# Sourced by scripts/demo and scripts/test: finds a Python and makes a virtual environment with the checkout in it.
# PYTHON names the interpreter to use; without it the first one that is new enough is used.

export PERFHARNESS_HISTORY=off # nothing outside of the checkout changes

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
    command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON is not there; give the path of a Python 3.10 or newer"
    is_new_enough "$PYTHON" || fail "$PYTHON is $("$PYTHON" --version 2>&1); perfharness needs Python 3.10 or newer"
    return
  fi
  for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
    if is_new_enough "$candidate"; then
      PYTHON=$candidate
      return
    fi
  done
  fail "no Python 3.10 or newer on PATH (python3 is: $(python3 --version 2>&1 || true)); install one, or name it:" \
    "PYTHON=/path/to/python3.12 scripts/$(basename "$0")"
}

# make_environment FOLDER FILE…: a virtual environment in FOLDER, made anew when its Python or one of the FILEs changed.
# Sets `fresh` to yes when packages have to be installed; mark_environment is called once they are.
make_environment() {
  local folder=$1 version
  shift
  version=$("$PYTHON" -c 'import sys; print(sys.executable, *sys.version_info[:3])')
  stamp=$(printf '%s\n' "$version" | cat - "$@" | cksum)
  fresh=no
  [ "$(cat "$folder/perfharness-stamp" 2>/dev/null)" = "$stamp" ] && return
  fresh=yes
  "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || fail "$PYTHON cannot make virtual environments: its module" \
    "venv or ensurepip is missing. On Debian and Ubuntu: apt install python3-venv. Or name another: PYTHON=…"
  "$PYTHON" -m venv --clear "$folder" || fail "$PYTHON could not make a virtual environment in $folder; see above"
}

mark_environment() {
  echo "$stamp" >"$1/perfharness-stamp"
}

# install FOLDER ARGUMENTS…: packages into the environment in FOLDER. uv takes a sixth of the time of pip. It does not
# read the files with pip's settings, so where it cannot install them, pip does. Half of torch is never imported; what
# is, is compiled when it is imported first.
install() {
  local python=$1/bin/python uv=$1/bin/uv pip=(-m pip install --quiet --disable-pip-version-check --no-compile)
  shift
  [ -x "$uv" ] || "$python" "${pip[@]}" uv 2>/dev/null || true
  UV_FIND_LINKS=${PIP_FIND_LINKS:-} UV_DEFAULT_INDEX=${PIP_INDEX_URL:-https://pypi.org/simple} \
    "$uv" pip install --quiet --no-cache --python "$python" "$@" 2>/dev/null || "$python" "${pip[@]}" "$@" ||
    fail "the packages could not be installed (see above); is a package index in reach?"
}
