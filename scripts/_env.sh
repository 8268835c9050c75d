# Sourced by the scripts beside it: makes an environment in the checkout once, and again when pyproject.toml changes.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"

# usage: make_environment FOLDER INTERPRETER EXTRA. Leaves the interpreter of the environment in $PYTHON.
make_environment() {
  local folder=$1 interpreter=$2 extra=$3 stamp
  if ! command -v "$interpreter" >/dev/null; then
    echo "There is no $interpreter here; install Python 3.11 or newer, or name one with MESHWRIGHT_PYTHON=/path/to/python3." >&2
    exit 2
  fi
  if ! "$interpreter" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$interpreter is $("$interpreter" --version 2>&1), and Meshwright needs 3.11 or newer; name one with MESHWRIGHT_PYTHON=/path/to/python3." >&2
    exit 2
  fi
  PYTHON="$ROOT/$folder/bin/python"
  stamp="$(cksum <pyproject.toml) $("$interpreter" --version) $extra"
  if [[ -x $PYTHON && "$(cat "$folder/meshwright.stamp" 2>/dev/null)" == "$stamp" ]]; then
    return
  fi
  echo "Making $folder with $("$interpreter" --version) (once; a minute or two)." >&2
  "$interpreter" -m venv --clear "$folder"
  "$PYTHON" -m pip install --quiet --quiet --disable-pip-version-check -e ".[$extra]"
  echo "$stamp" >"$folder/meshwright.stamp"
}
