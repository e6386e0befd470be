#!/usr/bin/env bash
# The shared library exports exactly the functions of abi/exports.txt; the static one defines no other global symbol.
# Usage: check_exports.sh BUILD_DIR
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/.." && pwd)
build_dir=$1
expected=$source_dir/abi/exports.txt

compare() { # NAME, actual symbols on stdin
  if ! diff -u "$expected" - ; then
    echo "$1: the exported symbols differ from abi/exports.txt (- expected, + found)"
    exit 1
  fi
  echo "$1: $(wc -l <"$expected") symbols, as listed"
}
nm -D --defined-only "$build_dir/libtessera.so" | awk '{print $3}' | LC_ALL=C sort | compare libtessera.so
nm -g --defined-only "$build_dir/libtessera.a" | awk 'NF == 3 {print $3}' | LC_ALL=C sort | compare libtessera.a
