#!/usr/bin/env bash
# The whole GPU round on a machine with a device, in under ten minutes: tests, sanitizers on small cases, bench beside
# PyTorch, and a short table at the end. It needs what was built (tessera_tests, libtessera.so), the driver and, for the
# bench, a python3 with torch. Usage: gpu_check.sh BUILD_DIR [OUTPUT_DIR]      parts: GPU_CHECK="tests sanitizers bench"
set -uo pipefail
source_dir=$(cd "$(dirname "$0")/.." && pwd)
build_dir=$(cd "$1" && pwd)
output=${2:-$build_dir/gpu_check}
mkdir -p "$output"
parts=${GPU_CHECK:-tests sanitizers bench}
failures=0
summary=()

# The textbook's cuBLAS, where the system does not find it by itself: beside PyTorch, or in the toolkit.
find_cublas='import nvidia, pathlib
print(next(str(f.parent) for p in nvidia.__path__ for f in pathlib.Path(p).rglob("libcublas.so.13")))'
cublas=$(python3 -c "$find_cublas" 2>/dev/null)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:${cublas:-/usr/local/cuda/lib64}

# step NAME SECONDS COMMAND...: runs it under a time limit, keeps its log, adds a line to the summary
step() {
  local name=$1 limit=$2 begin=$SECONDS code=0
  shift 2
  printf '== %s\n' "$name"
  timeout -s KILL "$limit" "$@" >"$output/$name.log" 2>&1 || code=$?
  if [ $code -ne 0 ]; then
    failures=$((failures + 1))
    tail -n 25 "$output/$name.log"
  fi
  local verdict=passed last
  [ $code -eq 0 ] || verdict="rc $code"
  last=$(grep -E '^\[  (PASSED|FAILED)|ERROR SUMMARY|RACECHECK SUMMARY' "$output/$name.log" | tail -n 1)
  summary+=("$(printf '%-22s %-8s %4d s  %s' "$name" "$verdict" $((SECONDS - begin)) "$last")")
}

tests=$build_dir/tessera_tests
if [[ $parts == *tests* ]]; then
  step tests 240 "$tests" '--gtest_filter=*Gpu*-*Big*'
fi
if [[ $parts == *sanitizers* ]]; then
  small='Words/GpuForward.MatchesTheJudge/*:Layouts/*:Splits/*:GpuRun.EmptyProblemsRun:GpuRun.WildMetadataStaysInside'
  for tool in memcheck racecheck initcheck; do
    step "$tool" 100 compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests" "--gtest_filter=$small"
  done
fi
if [[ $parts == *bench* ]]; then
  export PYTHONPATH=$source_dir/python TESSERA_LIBRARY=$build_dir/libtessera.so PYTHONUNBUFFERED=1
  step bench 200 python3 -m tessera.bench --suite forward --out "$output/forward.json"
  if [ -s "$output/forward.json" ]; then
    cat "$output/bench.log"
    python3 -m tessera.bench --draw "$output/forward.json" "$output/forward.png"
  fi
fi

printf '\n%-22s %-8s %6s\n' step result time
printf '%s\n' "${summary[@]}"
exit $((failures > 0))
