#!/usr/bin/env bash
# clang-tidy over the host sources of library, baselines and command line, as clang compiles them. Any finding fails.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
prepare_build
mkdir -p build
cmake -B build/lint -DCMAKE_BUILD_TYPE=Release -DTESSERA_CUDA=OFF -DTESSERA_TESTS=OFF \
  -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ >build/lint.log || { cat build/lint.log; exit 1; }
cmake --build build/lint --target tessera_build_info >>build/lint.log  # the one header that the build writes
# Of our sources those that this machine compiles: the ones for other processors and for CUDA need other headers.
mapfile -t files < <(git ls-files 'src/*.cpp' 'baselines/*.cpp' 'cli/*.cpp' |
  grep -x -F -f <(grep -o '"file": "[^"]*"' build/lint/compile_commands.json | cut -d '"' -f 4 | sed "s|^$PWD/||"))
[ ${#files[@]} -gt 50 ] || fail "only ${#files[@]} sources in build/lint/compile_commands.json"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build/lint --quiet --warnings-as-errors='*' \
  2> >(grep -v -E 'warnings? generated|Suppressed|Use -header-filter' >&2)
echo "lint: ${#files[@]} files clean"
