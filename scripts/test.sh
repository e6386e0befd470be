#!/usr/bin/env bash
# Builds and runs the tests that this machine can run: C and C++ through CTest (without the giant ones, label big),
# installed consumers, Python.
# Installs what is missing. Usage: test.sh [--quick] [--big] [--no-python] [--torch] [--only REGEX]
#   --quick        only the suites labelled quick (and nothing of Python)
#   --big          also those that need over 4 GB or a minute
#   --no-python    nothing of Python
#   --torch        only the Python tests that concern PyTorch, Transformers and JAX, which it installs (6 GB)
#   --only REGEX   only suites whose name matches
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

labels=(-LE '^big$')
python=1
only=()
while [ $# -gt 0 ]; do
  case $1 in
    --quick) labels=(-L '^quick$') python=0 ;;
    --big) labels=() ;;
    --no-python) python=0 ;;
    --torch) exec bash scripts/test_python.sh --torch ;;
    --only) [ $# -ge 2 ] || fail "--only needs a regular expression"; only=(-R "$2") python=0; shift ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) fail "unknown option $1; see --help" ;;
  esac
  shift
done

if [ -z "${TALLY:-}" ]; then
  TALLY=$(mktemp)
  export TALLY
  trap 'rm -f "$TALLY"' EXIT
  own_tally=1
fi

need_packages "${build_packages[@]}" libgtest-dev=/usr/include/gtest/gtest.h pkg-config=pkg-config binutils=objcopy \
  python3=python3 libboost-context-dev=/usr/include/boost/context/detail/fcontext.hpp
prepare_build
preset=release
if command -v nvcc >/dev/null 2>&1; then
  preset=cuda
fi
say "building preset $preset"
build_preset "$preset"
say "running the tests of build/$preset"
failed=0
run_ctest ctest "build/$preset" "${labels[@]}" "${only[@]}" || failed=1
if [ $python = 1 ]; then
  say "Python"
  if bash scripts/test_python.sh; then tally python 1 0; else tally python 0 1 && failed=1; fi
fi
if [ -n "${own_tally:-}" ]; then
  say "all done"
  close_tally || failed=1
fi
exit $failed
