#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a bounded time, from the seeds in fuzz/corpus and what earlier runs found.
# Usage: fuzz.sh [SECONDS a target, default 60] [TARGET ...]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh
seconds=${1:-60}
[ $# -eq 0 ] || shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(problem_text npy safetensors c_interface)
prepare_build
build_preset fuzz

fuzz_one() {
  local target=$1 work=build/fuzz/work/$1
  mkdir -p "$work/corpus"
  if UBSAN_OPTIONS=print_stacktrace=1 "build/fuzz/fuzz_$target" "$work/corpus" "fuzz/corpus/$target" \
    -max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="$work/" >"$work/log" 2>&1; then
    echo "fuzz_$target: $(awk '/number_of_executed_units/ {print $2}' "$work/log") inputs in $seconds s, nothing found"
  else
    tail -n 60 "$work/log"
    echo "fuzz_$target: FAILED, the input is in $work"
    return 1
  fi
}

# As many targets at a time as there are cores.
failed=0
waiting=()
for target in "${targets[@]}"; do
  fuzz_one "$target" &
  waiting+=($!)
  if [ ${#waiting[@]} -ge "$(nproc)" ]; then
    wait "${waiting[0]}" || failed=1
    waiting=("${waiting[@]:1}")
  fi
done
for job in "${waiting[@]}"; do
  wait "$job" || failed=1
done
exit $failed
