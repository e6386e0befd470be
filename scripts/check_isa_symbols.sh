#!/usr/bin/env bash
# Objects compiled for a newer instruction set define no weak symbol outside of their own namespace: a linker could take
# it for the portable code's and a machine without the instructions would stop. Usage: check_isa_symbols.sh BUILD_DIR
set -euo pipefail
objects=("$1"/src/CMakeFiles/tessera_core.dir/cpu/*_avx*.o "$1"/src/CMakeFiles/tessera_core.dir/cpu/amx/*_native*.o)
if [ ! -e "${objects[0]}" ]; then
  echo "isa symbols: no object for a newer instruction set in $1"
  exit 0
fi
leaked=$(nm -C --defined-only "${objects[@]}" |
  awk '$2 ~ /^[WVu]$/' |
  grep -Ev 'tessera::cpu::(avx2|avx512|amx_native(_backward|_decode)?|amx::NativeTiles)::|DW\.ref\.' || true)
if [ -n "$leaked" ]; then
  echo "weak symbols outside of their instruction set's namespace:"
  echo "$leaked"
  exit 1
fi
echo "isa symbols: ${#objects[@]} objects keep to their namespace"
