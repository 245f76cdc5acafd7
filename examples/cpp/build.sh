#!/usr/bin/env bash
# Builds lookup.cpp against the torch package in $TORCH into $OUT.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
: "${TORCH:=$(python3 -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent)')}"
: "${OUT:=lookup}"

"${CXX:-g++}" -std=c++20 -O1 "$here/lookup.cpp" -o "$OUT" \
  -isystem "$TORCH/include" -isystem "$TORCH/include/torch/csrc/api/include" \
  -L"$TORCH/lib" -Wl,-rpath,"$TORCH/lib" -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10 -ldl
