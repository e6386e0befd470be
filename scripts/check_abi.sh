#!/usr/bin/env bash
# Compares the C interface of this tree (functions, their types, every struct's layout) with the committed baseline.
# A wanted change goes in with its new baseline: check_abi.sh --update
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
prepare_build
baseline=abi/libtessera.abi
mkdir -p build
{ cmake -B build/abi -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-g -O0" -DTESSERA_CUDA=OFF -DTESSERA_CLI=OFF \
  -DTESSERA_TESTS=OFF && cmake --build build/abi --target tessera -j "$(nproc)"; } >build/abi.log 2>&1 ||
  { cat build/abi.log; exit 1; }
abidw --headers-dir include/tessera --drop-private-types --exported-interfaces-only --no-corpus-path --no-comp-dir-path \
  --no-show-locs --no-load-undefined-interfaces --out-file build/libtessera.abi build/abi/libtessera.so
if [ "${1:-}" = --update ]; then
  cp build/libtessera.abi "$baseline"
  echo "abi: $baseline written ($(grep -c '<elf-symbol ' "$baseline") functions)"
else
  abidiff "$baseline" build/libtessera.abi ||
    fail "the ABI differs from $baseline; if that is wanted, commit what scripts/check_abi.sh --update writes"
  echo "abi: as in $baseline"
fi
