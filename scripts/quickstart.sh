#!/usr/bin/env bash
# From a fresh clone to a first result: installs what is missing, builds the library and the command line, runs
# attention on queries, keys and values of a trained model, and shows what came out. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

need_packages "${build_packages[@]}"
prepare_build
say "building the library and the command line (preset cpu)"
build_preset cpu
tessera=build/cpu/tessera

say "attention of SmolLM2-135M-Instruct, layer 17: 64 tokens, 9 query heads on 3 key heads (examples/sample)"
words=(causal scale=0.125)
sample=(--q examples/sample/q.npy --k examples/sample/k.npy --v examples/sample/v.npy)
mkdir -p build/quickstart
"$tessera" run "${words[@]}" "${sample[@]}" --out build/quickstart/o.npy --lse build/quickstart/lse.npy
"$tessera" check "${words[@]}" "${sample[@]}"

say "the same heads at 64 and at 4096 tokens, beside the textbook method"
short="fwd f32 hq9 hkv3 sq64 d64 ${words[*]} cpu"
long="fwd f32 hq9 hkv3 sq4096 d64 ${words[*]} cpu"
check_short=$("$tessera" check --json "${words[@]}" "${sample[@]}")
check_long=$("$tessera" check --json "$long")
bench_short=$("$tessera" bench --json --seconds 1 "$short")
bench_long=$("$tessera" bench --json --seconds 3 "$long")

# value NAME LINE: a field of one line of JSON, "-" where it is null.
value() { sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p" <<<"$2" | sed 's/^null$/-/'; }

row() { # TITLE CHECK BENCH: one line of the table
  local ours textbook
  ours=$(sed -n 1p <<<"$3") textbook=$(sed -n 2p <<<"$3")
  awk -v title="$1" -v kernel="$(value kernel "$ours")" -v seconds="$(value seconds_median "$ours")" \
    -v tflops="$(value tflops "$ours")" -v speedup="$(value speedup_over_textbook "$ours")" \
    -v error="$(value max_abs_error "$2")" -v allowed="$(value tolerance "$2")" \
    -v bytes="$(value workspace_bytes "$ours")" -v textbook="$(value workspace_bytes "$textbook")" '
    function size(b) {
      return b == "-" ? "-" : b < 1048576 ? sprintf("%.0f KiB", b / 1024) : sprintf("%.1f MiB", b / 1048576)
    }
    BEGIN {
      printf "%-23s %-19s %8.2f ms %8.1f %9s   %.1e of %.1e   %9s %9s\n", title, kernel, seconds * 1e3, tflops * 1e3,
        speedup == "-" ? "-" : sprintf("%.1fx", speedup), error, allowed, size(bytes), size(textbook)
    }'
}

printf '\n%-23s %-19s %11s %8s %9s   %-18s   %9s %9s\n' "attention over" kernel time GFLOP/s "speed-up" \
  "error of allowed" "memory" "textbook"
row "64 tokens of the model" "$check_short" "$bench_short"
row "4096 tokens, random" "$check_long" "$bench_long"
cat <<TXT

kernel             what ran; "$tessera explain \"$long\"" says why
speed-up           over the textbook method, which writes every score to memory and multiplies with a BLAS
error of allowed   largest difference from a float64 evaluation, and how much the test rule grants
memory, textbook   what each needs beside q, k, v and the result

The result for the model is in build/quickstart/o.npy. Your own arrays:
  $tessera run causal --q q.npy --k k.npy --v v.npy --out o.npy
TXT
