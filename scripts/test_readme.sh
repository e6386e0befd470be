#!/usr/bin/env bash
# Takes the programs out of README.md and builds and runs them as they stand, so that what a newcomer copies works.
# Usage: test_readme.sh BUILD_DIR
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/.." && pwd)
build_dir=$(cd "$1" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

block() { # LANGUAGE: the first fenced block of that language
  awk -v fence="\`\`\`$1" '$0 == fence {inside = 1; next} /^```$/ {if (inside) exit} inside' "$source_dir/README.md"
}

block cpp >"$scratch/readme.cpp"
block c >"$scratch/readme.c"
[ -s "$scratch/readme.cpp" ] && [ -s "$scratch/readme.c" ] || { echo "README.md has no cpp or no c block"; exit 1; }
warnings=(-Wall -Wextra -Werror -pedantic)
paths=(-I"$source_dir/include" -L"$build_dir")
c++ -std=c++20 -O1 "${warnings[@]}" "$scratch/readme.cpp" -o "$scratch/readme_cpp" "${paths[@]}" -ltessera
cc -std=c11 -O1 "${warnings[@]}" "$scratch/readme.c" -o "$scratch/readme_c" "${paths[@]}" -ltessera
export LD_LIBRARY_PATH=$build_dir
"$scratch/readme_cpp" | tee "$scratch/cpp.out"
grep -q 'o\[0\] = 1$' "$scratch/cpp.out" || { echo "README's C++ program must print o[0] = 1"; exit 1; }
"$scratch/readme_c"
