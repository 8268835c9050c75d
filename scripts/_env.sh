# Sourced by the scripts beside it: makes an environment in the checkout once, and again when pyproject.toml changes.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"

# usage: make_environment FOLDER INTERPRETER EXTRA. EXTRA: run for what the library needs, test for what its tests need
# as well, tpu for the TPU compiler beside what the library needs. Leaves the interpreter of the environment in $PYTHON.
make_environment() {
  local folder=$1 interpreter=$2 extra=$3 stamp what="."
  if ! command -v "$interpreter" >/dev/null; then
    echo "There is no $interpreter here; install Python 3.11 or newer, or name one with MESHWRIGHT_PYTHON=/path/to/python3." >&2
    exit 2
  fi
  if ! "$interpreter" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$interpreter is $("$interpreter" --version 2>&1), and Meshwright needs 3.11 or newer; name one with MESHWRIGHT_PYTHON=/path/to/python3." >&2
    exit 2
  fi
  PYTHON="$ROOT/$folder/bin/python"
  [[ $extra == run ]] || what=".[$extra]"
  stamp="$(cksum <pyproject.toml) $("$interpreter" --version)"
  [[ "$(cat "$folder/made-$extra" 2>/dev/null)" != "$stamp" ]] || return 0
  echo "Making $folder with $("$interpreter" --version) (once; a minute or two)." >&2
  if [[ "$(cat "$folder/made-run" 2>/dev/null)" != "$stamp" ]]; then
    "$interpreter" -m venv --clear "$folder"
  fi
  "$PYTHON" -m pip install --quiet --quiet --disable-pip-version-check -e "$what"
  echo "$stamp" >"$folder/made-run"
  echo "$stamp" >"$folder/made-$extra"
}
