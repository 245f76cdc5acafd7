// Instructions for fp16 and bf16 that CUDA C++ has no name for without a header of the toolkit. Two
// numbers share a word, the first in the low half.
#pragma once

#include "common/cuda_types.cuh"

// See common/tensor_cores.cuh.
__device__ __forceinline__ void multiply_add_fp16(float (&d)[4], const uint32 (&a)[4], uint32 b0,
                                                  uint32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_add_bf16(float (&d)[4], const uint32 (&a)[4], uint32 b0,
                                                  uint32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32 subtract_fp16(uint32 from, uint32 what) {
  uint32 result;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(from), "r"(what));
  return result;
}

__device__ __forceinline__ uint32 subtract_bf16(uint32 from, uint32 what) {
  uint32 result;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(from), "r"(what));
  return result;
}

// Rounded to the nearest.
__device__ __forceinline__ uint32 to_fp16(float first, float second) {
  uint32 result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
  return result;
}

__device__ __forceinline__ uint32 to_bf16(float first, float second) {
  uint32 result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
  return result;
}

__device__ __forceinline__ float from_fp16(unsigned short bits) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(bits));
  return result;
}

__device__ __forceinline__ float bits_to_float(uint32 bits) { return __uint_as_float(bits); }

__device__ __forceinline__ uint32 float_to_bits(float value) { return __float_as_uint(value); }
