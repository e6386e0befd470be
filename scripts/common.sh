# Shared by the scripts: progress lines, packages, generator. Sourced, never run.

say() { printf '\n== [%(%H:%M:%S)T] %s\n' -1 "$*"; }
fail() { printf '%s\n' "$*" >&2; exit 1; }

# need_packages PACKAGE=WITNESS ...: installs the Debian or Ubuntu packages whose witness is missing. A witness is a
# command, an absolute path (globs allowed), or py:MODULE.
need_packages() {
  local pair package witness missing=()
  for pair in "$@"; do
    package=${pair%%=*} witness=${pair#*=}
    case $witness in
      py:*) python3 -c "import ${witness#py:}" 2>/dev/null ;;
      /*) compgen -G "$witness" >/dev/null ;;
      *) command -v "$witness" >/dev/null 2>&1 ;;
    esac || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null 2>&1 ||
    fail "missing: ${missing[*]} (names of Debian packages; without apt-get please install them yourself)"
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || fail "missing: ${missing[*]}; installing them needs root or sudo"
    root=(sudo)
  fi
  say "installing ${missing[*]}"
  root+=(env DEBIAN_FRONTEND=noninteractive)
  "${root[@]}" apt-get -qq update
  "${root[@]}" apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
}

build_packages=(g++=c++ cmake=cmake ninja-build=ninja libfmt-dev=/usr/include/fmt/format.h
  nlohmann-json3-dev=/usr/include/nlohmann/json.hpp libcli11-dev=/usr/include/CLI/CLI.hpp
  libopenblas0-pthread=/usr/lib/*/openblas-pthread/libopenblas.so.0)

# The build directory keeps the generator that it has; a new one gets Ninja where there is Ninja.
prepare_build() {
  local version
  version=$(cmake --version | awk 'NR == 1 {print $3}')
  [ "$(printf '%s\n3.25\n' "$version" | sort -V | head -1)" = 3.25 ] ||
    fail "cmake $version found, 3.25 or later needed (Debian 12 and Ubuntu 24.04 have it)"
  if [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null 2>&1; then
    export CMAKE_GENERATOR=Ninja
  fi
  if [ -z "${CMAKE_CXX_COMPILER_LAUNCHER:-}" ] && command -v ccache >/dev/null 2>&1; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
  fi
}

# build_preset PRESET: configures and builds, with the whole log shown only when it fails. TESSERA_WERROR=ON, as in
# CI, makes warnings errors.
build_preset() {
  local preset=$1 log
  log=build/$preset.log
  mkdir -p build
  cmake --preset "$preset" -DTESSERA_WERROR="${TESSERA_WERROR:-OFF}" >"$log" 2>&1 ||
    { cat "$log"; fail "configuring preset $preset failed"; }
  grep -F 'tessera:' "$log" || true
  cmake --build --preset "$preset" -j "$(nproc)" >>"$log" 2>&1 ||
    { tail -n 200 "$log"; fail "building preset $preset failed"; }
}

# tally NAME PASSED FAILED [SKIPPED]: one line of the running account in the file $TALLY.
tally() { printf '%s %d %d %d\n' "$1" "$2" "$3" "${4:-0}" >>"$TALLY"; }

# The closing line, and success when nothing failed and something ran.
close_tally() {
  awk '{passed += $2; failed += $3; skipped += $4}
       END {printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
            exit !(failed == 0 && passed > 0)}' "$TALLY"
}

# run_ctest NAME BUILD_DIR [CTEST ARGUMENT ...]: runs and tallies; says what failed, and why tests were skipped.
run_ctest() {
  local name=$1 dir=$2 log=$2/ctest.log suites failed skipped
  shift 2
  ctest --test-dir "$dir" -j "$(nproc)" --output-on-failure --no-tests=error --output-junit ctest.xml "$@" \
    >"$log" 2>&1 || true
  grep -E '^ *[0-9]+/[0-9]+ ' "$log" | grep -v ' Passed ' || true
  grep -A1 ': Skipped$' "$dir/Testing/Temporary/LastTest.log" | grep -v -e ': Skipped$' -e '^--$' | sort | uniq -c |
    sort -rn | head -n 12 | sed 's/^ *\([0-9]*\) /  skipped \1 times: /' || true
  suites=$(attribute tests "$dir/ctest.xml") failed=$(attribute failures "$dir/ctest.xml")
  skipped=$(($(attribute skipped "$dir/ctest.xml") + $(attribute disabled "$dir/ctest.xml")))
  [ "$suites" -gt 0 ] || failed=1
  tally "$name" $((suites > 0 ? suites - failed - skipped : 0)) "$failed" "$skipped"
  echo "$suites suites, $failed failed, $skipped skipped"
  if [ "$failed" -gt 0 ]; then
    sed -n '/^The following tests FAILED/,$p' "$log"
    grep -A 6 -E 'Failure$|ERROR:|runtime error:|WARNING: ThreadSanitizer' "$log" | head -n 150 || true
    echo "whole log: $log"
    return 1
  fi
}

# attribute NAME FILE: a count of the first <testsuite> of a JUnit file, 0 where it is missing.
attribute() { { grep -oE "^[[:space:]]+$1=\"[0-9]+" "$2" 2>/dev/null || echo '"0'; } | head -n 1 | sed 's/.*"//'; }
