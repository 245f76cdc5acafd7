// Words for threads, and what the threads of a warp find out together.
#pragma once

#include "common/cuda_types.cuh"

constexpr int kLanes = 32;
constexpr uint32 kWarp = 0xffffffffu;

// Bits of the lanes before this one.
__device__ __forceinline__ uint32 lanes_before(int lane) { return (1u << lane) - 1; }

// The highest bit that is set in a word that is not 0.
__device__ __forceinline__ int highest_bit(uint32 word) {
  return 31 - __clz(static_cast<int>(word));
}
