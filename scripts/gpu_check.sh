#!/usr/bin/env bash
# The whole GPU round on a machine with a device, in about five minutes: tests, sanitizers on small cases, the command
# line, the bench beside PyTorch, and a short table at the end. Nothing is built: it needs what was (tessera,
# tessera_tests, libtessera.so, libtessera_baselines.so in one folder), the driver, compute-sanitizer for the sanitizers
# and a python3 with torch for the bench, which takes FlashAttention-3 and -4 along where fa3-fwd and flash-attn-4 are
# installed.
# Usage: gpu_check.sh BUILD_DIR [OUTPUT_DIR]
# parts: GPU_CHECK="tests sanitizers cli bench" (the default), also "big", "python" (its tests, by pytest), "special"
# (the bench's GQA, packed, window and short cells), "f16" (its grid in f16), "gradients" (its grid backward
# with GQA, window and packed cells, and both passes together),
# "recompute" (forward and backward beside the textbook's, and what ncu, where it is, counts of device memory),
# "story" (textbook, FlashAttention-1, -2 and -3 beside one another, half a minute), "bytes" (what ncu counts for that,
# or for the story of an earlier round), "ablations" (kernels with one step taken back each, and both bandwidths; needs
# a build with -DTESSERA_ABLATIONS=ON),
# "decode" (few queries over long caches), "append" (new rows into caches), "serving" (tessera_serve, whose tokens must
# be those of its reference), "training" (examples/train_gpt2.py, two minutes), "quantize" (its tests, GB/s beside a
# copy, what float8 costs in accuracy), "fp8" (attention on float8: tests, the bench's grid, accuracy in both orders of
# v), and "wheel": every Python test and the host time of a call with the wheels that lie in BUILD_DIR, installed
# without a network into a folder of their own: GPU_CHECK=wheel gpu_check.sh DIR_OF_WHEELS
set -uo pipefail
source_dir=$(cd "$(dirname "$0")/.." && pwd)
build_dir=$(cd "$1" && pwd)
output=${2:-$build_dir/gpu_check}
mkdir -p "$output"
parts=${GPU_CHECK:-tests sanitizers cli bench}
failures=0
summary=()

# The textbook's cuBLAS, where the system does not find it by itself: beside PyTorch, or in the toolkit.
find_cublas='import nvidia, pathlib
print(next(str(f.parent) for p in nvidia.__path__ for f in pathlib.Path(p).rglob("libcublas.so.13")))'
cublas=$(python3 -c "$find_cublas" 2>/dev/null)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$build_dir:${cublas:-/usr/local/cuda/lib64}
[ -d "$source_dir/tests/data" ] && export TESSERA_TEST_DATA=$source_dir/tests/data
export TESSERA_LIBRARY=$build_dir/libtessera.so PYTHONUNBUFFERED=1
# Else the pools of many graphs, the textbook's above all, take the whole device in pieces that nothing else fits.
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export PYTHONPATH=$source_dir/python${PYTHONPATH:+:$PYTHONPATH}

# start NAME SECONDS COMMAND...: runs it in the background under a time limit, its log and its verdict in files.
start() {
  local name=$1 limit=$2
  shift 2
  {
    local begin=$SECONDS code=0
    timeout -s KILL "$limit" "$@" >"$output/$name.log" 2>&1 || code=$?
    printf '%d %d\n' "$code" $((SECONDS - begin)) >"$output/$name.result"
  } &
}

# finish NAME...: waits for all that was started, then adds a line a name to the summary; the log's end where it failed.
finish() {
  wait
  local name code seconds last
  for name in "$@"; do
    read -r code seconds <"$output/$name.result"
    grep -q 'no GPU test here' "$output/$name.log" && code=77 # a round without a device is no round
    [ "$code" -eq 5 ] && grep -q '^SKIPPED' "$output/$name.log" && code=0 # a file of Python tests, skipped as a whole
    if [ "$code" -ne 0 ]; then
      failures=$((failures + 1))
      printf '== %s\n' "$name"
      grep -E '^\[  FAILED|Failure$|^========= (Error|Invalid|Race|Uninit)' "$output/$name.log" | head -n 20
      tail -n 15 "$output/$name.log"
    fi
    last='^\[  (PASSED|FAILED)|^\[==.* ran|ERROR SUMMARY|RACECHECK SUMMARY|^[0-9]+ (checks )?(passed|failed)'
    last=$(grep -E "$last" "$output/$name.log" | tail -n 1)
    [ "$code" -eq 0 ] && code=passed || code="rc $code"
    summary+=("$(printf '%-12s %-8s %4d s  %s' "$name" "$code" "$seconds" "$last")")
  done
}

tests=$build_dir/tessera_tests
# tests NAME FILTER: the judge is a plain loop on the CPU, so the suites are cut into parts that run at once.
tests() {
  local name=$1 filter=$2 shards=8 shard names=()
  for ((shard = 0; shard < shards; ++shard)); do
    names+=("$name$shard")
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard start "$name$shard" 240 "$tests" "--gtest_filter=$filter"
  done
  finish "${names[@]}"
}
if [[ $parts == *tests* ]]; then tests tests '*Gpu*-*Gpu*Big.*'; fi
if [[ $parts == *big* ]]; then tests big '*Gpu*Big.*'; fi
if [[ $parts == *sanitizers* ]]; then
  for tool in memcheck racecheck initcheck; do
    start "$tool" 100 compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests" '--gtest_filter=GpuSanitizer.*'
  done
  finish memcheck racecheck initcheck
fi
if [[ $parts == *cli* ]]; then
  start check 60 "$build_dir/tessera" check 'bf16 b2 hq8 hkv2 sq1000 d128 causal cuda kernel=*' \
    'f16 b4 hq8 hkv2 sq1 sk2000 d64 paged=16 pages=shuffled lens=longtail splits=4 cuda'
  finish check
  start cli 60 "$build_dir/tessera" bench --seconds 1 'bf16 b4 hq16 sq4096 d128 causal cuda'
  finish cli
  cat "$output/check.log" "$output/cli.log"
fi
# python_tests NAME PYTHON...: a process a test file, 8 at once and the largest first: they wait for the device, for
# other processes and for judges on one core. The summary has one line, beside those of files that failed.
python_tests() {
  local name=$1 begin=$SECONDS before=${#summary[@]} files file one broken names=() logs=()
  shift
  mapfile -t files < <(ls -S "$source_dir"/python/tests/test_*.py)
  for file in "${files[@]}"; do
    while (($(jobs -rp | wc -l) >= 8)); do wait -n; done
    one=$name.$(basename "$file" .py)
    names+=("$one")
    logs+=("$output/$one.log")
    start "$one" 300 env OMP_NUM_THREADS=2 "$@" -m pytest -q -rs -p no:cacheprovider "$file"
  done
  finish "${names[@]}"
  grep -h '^SKIPPED' "${logs[@]}"
  mapfile -t broken < <(printf '%s\n' "${summary[@]:before}" | grep ' rc ')
  summary=("${summary[@]:0:before}" "${broken[@]}")
  printf -v one '%-12s %-8s %4d s  %s' "$name" "${#files[@]} files" $((SECONDS - begin)) "$(counts "${logs[@]}")"
  summary+=("$one")
}
# counts LOG...: pytest's last lines, added up.
counts() {
  tail -qn 1 "$@" | grep -oE '[0-9]+ (failed|passed|skipped|error)' |
    awk '{ n[$2] += $1 } END { for (word in n) printf "%d %s, ", n[word], word }' | sed 's/, $//'
}
if [[ $parts == *python* ]]; then python_tests python python3; fi
# The file that users get, without the build and the tree's package.
if [[ $parts == *wheel* ]]; then
  site=$(mktemp -d)
  wheel=$(find "$build_dir" -maxdepth 1 -name 'tessera-*.whl' | head -n 1)
  installed=(env -u TESSERA_LIBRARY "PYTHONPATH=$site" "TESSERA_WHEEL=$wheel" python3)
  start install 60 python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$build_dir"/*.whl
  finish install
  python_tests wheel "${installed[@]}"
  start overhead 60 "${installed[@]}" "$source_dir/bench/python_overhead.py"
  finish overhead
  tee "$output/python-overhead.json" <"$output/overhead.log"
  ls -l "$wheel"
  "${installed[@]}" -m tessera
fi
# bench NAME SECONDS ARGUMENT...: cells beside the peers that python3 can import, the table, a result file.
bench() {
  local name=$1 limit=$2
  shift 2
  start "$name" "$limit" python3 -m tessera.bench --out "$output/$name.json" "$@"
  finish "$name"
  cat "$output/$name.log"
}
if [[ $parts == *bench* ]]; then
  bench forward 200 --suite forward --peers flash,cudnn,fa3,fa4,textbook
  python3 -m tessera.bench --draw "$output/forward.json" "$output/forward.png"
fi
if [[ $parts == *quantize* ]]; then
  start quantize 120 "$tests" '--gtest_filter=GpuQuantize*:GpuBugFp8*'
  start quantize_rate 60 python3 -m tessera._bench_quantize "$output/quantize.json"
  finish quantize quantize_rate
  start fp8_accuracy 240 python3 -m tessera.fp8_accuracy --device cuda --out "$output/fp8-accuracy.json"
  finish fp8_accuracy
  cat "$output/quantize_rate.log" "$output/fp8_accuracy.log"
fi
if [[ $parts == *fp8* ]]; then
  tests fp8_tests '*GpuFp8*:GpuEncodings*Bytes*:GpuEncodings*Values*:GpuTensorMaps.BoxesOfBytes'
  bench fp8 240 --suite fp8 --peers cudnn,fa3
  python3 -m tessera.bench --draw "$output/fp8.json" "$output/fp8.png"
  for order in 0 1; do
    start "fp8_order$order" 240 python3 -m tessera.fp8_accuracy --device cuda --order "$order" \
      --longest 131072 --out "$output/fp8-order$order.json"
  done
  finish fp8_order0 fp8_order1
  cat "$output/fp8_order0.log" "$output/fp8_order1.log"
fi
if [[ $parts == *special* ]]; then bench special 120 --suite special; fi
if [[ $parts == *gradients* ]]; then
  bench backward 240 --suite backward --seconds 0.3 --kernel 'cuda.sm90.backward' --kernel 'cuda.sm80.backward'
  python3 -m tessera.bench --draw "$output/backward.json" "$output/backward.png"
  start forward_backward 60 python3 "$source_dir/bench/forward_backward.py" --out "$output/forward-backward.json"
  finish forward_backward
  cat "$output/forward_backward.log"
fi
if [[ $parts == *recompute* ]]; then
  bench recompute 90 --suite recompute --seconds 0.4
  if command -v ncu >/dev/null; then
    start dram 90 python3 -m tessera._bench_recompute 'bwd bf16 b4 hq16 sq4096 d128 cuda'
    finish dram
    cat "$output/dram.log"
  else
    echo 'bytes of device memory: not counted, ncu is not installed'
  fi
fi
if [[ $parts == *ablations* ]]; then bench ablations 240 --suite ablations --seconds 0.3; fi
if [[ $parts == *story* ]]; then bench story 60 --suite story --seconds 0.2; fi
if [[ $parts == *bytes* ]]; then
  # Into this round's story, else an earlier round's in the same folder, else the committed one's copy.
  [ -f "$output/story.json" ] || cp "$source_dir/bench/results/h200-story.json" "$output/story.json"
  start bytes 150 python3 -m tessera.bench --suite story --ncu only --out "$output/story.json"
  finish bytes
  cat "$output/bytes.log"
fi
if [[ $parts == *story* ]]; then python3 -m tessera.bench --draw "$output/story.json" "$output/story.png"; fi
if [[ $parts == *decode* ]]; then
  bench decode 120 --suite decode --seconds 0.3 --peers flash,cudnn,fa3 --kernel '' --kernel 'cuda.*.forward'
fi
if [[ $parts == *append* ]]; then bench append 60 --suite append --seconds 0.1; fi
if [[ $parts == *serving* ]]; then
  data=$source_dir/examples/serving/whisper_tiny_en
  start serving 60 "$build_dir/tessera_serve" --device cuda --check --quiet --requests 64 --batch 16 --data "$data"
  finish serving
  cat "$output/serving.log"
fi
if [[ $parts == *training* ]]; then
  start training 150 python3 "$source_dir/examples/train_gpt2.py" --out "$output/training.json" \
    --picture "$output/training.png"
  finish training
  cat "$output/training.log"
fi
if [[ $parts == *f16* ]]; then bench forward-f16 120 --suite forward --dtype f16 --seconds 0.4; fi

printf '\n%-12s %-8s %6s\n' step result time
printf '%s\n' "${summary[@]}"
exit $((failures > 0))
