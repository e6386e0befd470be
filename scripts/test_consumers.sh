#!/usr/bin/env bash
# Installs a build tree into a scratch prefix and builds, runs and checks programs of a user's kind against it: C11 and
# C++, by find_package and by pkg-config, with the shared and the static library. Usage: test_consumers.sh BUILD_DIR
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/.." && pwd)
build_dir=$(cd "$1" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix
consumers=$source_dir/tests/consumers

say() { printf '== %s\n' "$*"; }

say "install"
cmake --install "$build_dir" --prefix "$prefix" >"$scratch/install.log"

for language in c cpp; do
  say "find_package: $language"
  cmake -S "$consumers/$language" -B "$scratch/$language" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release \
    >"$scratch/configure.log" || { cat "$scratch/configure.log"; exit 1; }
  cmake --build "$scratch/$language" >"$scratch/build.log" || { cat "$scratch/build.log"; exit 1; }
  for program in "$scratch/$language"/{consumer_*,c_interface_*,cpp_layer_*}; do
    if [ -x "$program" ]; then
      "$program"
    fi
  done
done

say "find_package: the serving example"
cmake -S "$source_dir/examples/serving" -B "$scratch/serving" -DCMAKE_PREFIX_PATH="$prefix" >"$scratch/configure.log" ||
  { cat "$scratch/configure.log"; exit 1; }
cmake --build "$scratch/serving" >"$scratch/build.log" || { cat "$scratch/build.log"; exit 1; }
"$scratch/serving/tessera_serve" --requests 1 --check --quiet

# The prefix is moved first: neither package may remember where it was installed.
mv "$prefix" "$scratch/moved"
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$scratch/moved" -name tessera.pc)")
library_dir=$(pkg-config --variable=libdir tessera)
say "pkg-config: c, shared"
# shellcheck disable=SC2046
cc -std=c11 -O1 -Wall -Wextra -Werror -pedantic "$consumers/c/main.c" -o "$scratch/c_shared" \
  $(pkg-config --cflags --libs tessera) -lm
LD_LIBRARY_PATH=$library_dir "$scratch/c_shared"
say "pkg-config: c, static"
# shellcheck disable=SC2046
cc -std=c11 -O1 -Wall -Wextra -Werror -pedantic "$consumers/c/main.c" -o "$scratch/c_static" \
  $(pkg-config --static --cflags --libs tessera | sed "s|-ltessera|-l:libtessera.a|")
"$scratch/c_static"
say "pkg-config: c++, shared"
# shellcheck disable=SC2046
c++ -std=c++20 -O1 -Wall -Wextra -Werror -pedantic "$consumers/cpp/cpp_layer.cpp" -o "$scratch/cpp_shared" \
  $(pkg-config --cflags --libs tessera)
LD_LIBRARY_PATH=$library_dir "$scratch/cpp_shared"

say "soname"
soname=$(objdump -p "$library_dir/libtessera.so" | awk '$1 == "SONAME" {print $2}')
[ "$soname" = libtessera.so.0 ] || { echo "SONAME is '$soname', expected libtessera.so.0"; exit 1; }
say "consumers passed"
