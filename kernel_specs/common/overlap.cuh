// The argument `overlap` of a kernel in CUDA C++; overlap.py says what its bits mean.
#pragma once

#include "common/ptx.cuh"

__device__ __forceinline__ void begin(int overlap) {
  if (overlap & 4) wait_for_previous_launch();
  if (overlap & 1) let_next_launch_start();
}

__device__ __forceinline__ void end(int overlap) {
  if (overlap & 2) wait_for_previous_launch();
}
