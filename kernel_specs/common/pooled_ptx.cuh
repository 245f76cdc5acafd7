// Instructions for pooled rows that CUDA C++ has no name for without a header of the toolkit: those
// that Triton makes of output.py and of a division, so that results have the same bits.
#pragma once

#include "common/cuda_types.cuh"

// What 16 bytes hold.
struct alignas(16) Vector {
  uint32 words[4];
};

// Not rounded to the nearest: off by 2 units in the last place at the most.
__device__ __forceinline__ float divide(float dividend, float divisor) {
  float result;
  asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(dividend), "f"(divisor));
  return result;
}

// Streaming stores, of what nothing in the launch reads again.
__device__ __forceinline__ void store_streaming(Vector* address, const Vector& value) {
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value.words[0]),
               "r"(value.words[1]), "r"(value.words[2]), "r"(value.words[3])
               : "memory");
}

__device__ __forceinline__ void store_streaming(uint32* address, uint32 value) {
  asm volatile("st.global.cs.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_streaming(unsigned short* address, unsigned short value) {
  asm volatile("st.global.cs.b16 [%0], %1;" ::"l"(address), "h"(value) : "memory");
}
