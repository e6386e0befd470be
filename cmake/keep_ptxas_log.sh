#!/bin/sh
# Compiler launcher for nvcc: runs the command and keeps what ptxas says of registers, stack and notes beside the
# object, as OBJECT.ptxas, where scripts/check_ptxas.py reads it; the rest of the messages pass through.
object=
previous=
for argument; do
  if [ "$previous" = -o ]; then object=$argument; fi
  previous=$argument
done
if [ -z "$object" ]; then exec "$@"; fi
"$@" 2>"$object.ptxas"
code=$?
grep -v -E '^ptxas info|bytes stack frame' "$object.ptxas" >&2
exit $code
