#!/usr/bin/env bash
# Builds the wheel, installs it into build/venv and runs the Python tests against it. Safe to run twice.
# usage: scripts/test_python.sh [--torch] [pytest arguments]     PYTHON=python3.12 chooses the interpreter
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
need_packages "${build_packages[@]}" python3=python3 python3-venv=py:ensurepip
prepare_build

python=${PYTHON:-python3}
environment=build/venv
packages=(array-api-strict ml_dtypes numpy pytest)
if [[ "${1:-}" == --torch ]]; then
  shift
  packages+=(torch)
fi

say "environment $environment with ${packages[*]}"
# An environment of another interpreter, or one whose making was cut short, is made anew.
wanted=$("$python" -c 'import sys; print(sys.version)')
if [[ "$("$environment/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null || true)" != "$wanted" ]]; then
  "$python" -m venv --clear "$environment"
fi
python=$PWD/$environment/bin/python
"$python" -m pip install -q --disable-pip-version-check "${packages[@]}"

say "wheel"
rm -rf build/dist
CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)} \
  "$python" -m pip wheel -q --disable-pip-version-check --no-deps -w build/dist .
wheel=$(ls "$PWD"/build/dist/tessera-*.whl)
"$python" -m pip install -q --disable-pip-version-check --no-deps --no-index --force-reinstall "$wheel"

say "tests of $(basename "$wheel")"
unset TESSERA_LIBRARY PYTHONPATH
TESSERA_WHEEL=$wheel "$python" -m pytest -q "$@"
