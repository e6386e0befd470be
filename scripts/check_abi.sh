#!/usr/bin/env bash
# Compares the C interface of this tree (functions, their types, every struct's layout) with the committed baseline.
# A wanted change goes in with its new baseline: check_abi.sh --update
set -euo pipefail
cd "$(dirname "$0")/.."
baseline=abi/libtessera.abi
mkdir -p build/abi
# The source that defines the interface says all about its types; a shared object may leave the rest undefined.
c++ -std=c++20 -g -O0 -fPIC -shared -fvisibility=hidden -DTESSERA_BUILD -DFMT_HEADER_ONLY -Iinclude -Isrc \
  src/c_api.cpp -Wl,--version-script=src/exports.map -o build/abi/libtessera.so
abidw --headers-dir include/tessera --drop-private-types --exported-interfaces-only --no-corpus-path \
  --no-comp-dir-path --no-show-locs --drop-undefined-syms --no-elf-needed --type-id-style hash \
  --out-file build/abi/libtessera.abi build/abi/libtessera.so
if [ "${1:-}" = --update ]; then
  cp build/abi/libtessera.abi "$baseline"
  echo "abi: $baseline written ($(grep -c '<elf-symbol ' "$baseline") functions)"
elif abidiff "$baseline" build/abi/libtessera.abi; then
  echo "abi: as in $baseline"
else
  echo "the ABI differs from $baseline; if that is wanted, commit what scripts/check_abi.sh --update writes"
  exit 1
fi
