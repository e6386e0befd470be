#!/usr/bin/env bash
# From a fresh clone to a first result: installs what is missing, builds the library and the command line, runs attention
# on queries, keys and values of a trained model, and shows what came out. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

need_packages "${build_packages[@]}"
prepare_build
say "building the library and the command line (preset cpu)"
build_preset cpu
tessera=build/cpu/tessera

say "running attention on examples/sample: SmolLM2-135M-Instruct, layer 17, 64 tokens, 9 query heads on 3 key heads"
sample=(--q examples/sample/q.npy --k examples/sample/k.npy --v examples/sample/v.npy)
mkdir -p build/quickstart
"$tessera" run causal scale=0.125 "${sample[@]}" --out build/quickstart/o.npy --lse build/quickstart/lse.npy
