// Products of small matrices on tensor cores, a warp at a time, and the 16-bit numbers they take.
#pragma once

#include "common/cuda_types.cuh"
#include "common/half_ptx.cuh"

// d [16, 8] += a [16, 16] * b [16, 8], fp32 sums of exact products of fp16 or bf16.
//
// Lane 4 * g + q of the warp holds of a: rows g and g + 8, columns 2q, 2q + 1 (a[0], a[1]) and 2q +
// 8, 2q + 9 (a[2], a[3]); of b: column g, rows 2q, 2q + 1 (b0) and 2q + 8, 2q + 9 (b1); of d: rows
// g (d[0], d[1]) and g + 8 (d[2], d[3]), columns 2q, 2q + 1.
template <bool is_bf16>
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32 (&a)[4], uint32 b0,
                                             uint32 b1) {
  if (is_bf16) {
    multiply_add_bf16(d, a, b0, b1);
  } else {
    multiply_add_fp16(d, a, b0, b1);
  }
}

// Integers below 2^kBits as fp16 or bf16, without a conversion, which is slow: their bits become
// the last ones of a number whose last bit is worth 1, and that number is subtracted.
template <bool is_bf16>
struct ExactIntegers {
  static constexpr int kBits = is_bf16 ? 7 : 10;

  static __device__ __forceinline__ uint32 pair(uint32 first, uint32 second) {
    const uint32 base = is_bf16 ? 0x43004300u : 0x64006400u;
    const uint32 shifted = first | second << 16 | base;
    return is_bf16 ? subtract_bf16(shifted, base) : subtract_fp16(shifted, base);
  }
};

template <bool is_bf16>
__device__ __forceinline__ float half_to_float(unsigned short bits) {
  return is_bf16 ? bits_to_float(static_cast<uint32>(bits) << 16) : from_fp16(bits);
}

// An `output_dtype` of a lookup, besides 0 for fp32 and 2 for bf16.
constexpr int kFp16Output = 1;

// Two numbers of a half output in a word, the first in the low half.
__device__ __forceinline__ uint32 to_half_output(float first, float second, int output_dtype) {
  return output_dtype == kFp16Output ? to_fp16(first, second) : to_bf16(first, second);
}

// Whether one of two numbers is infinite or NaN: all bits of its exponent are set, so that one more
// carries into the place of the sign.
template <bool is_bf16>
__device__ __forceinline__ bool any_not_finite(uint32 pair) {
  const uint32 exponent = is_bf16 ? 0x7f807f80u : 0x7c007c00u;
  const uint32 one = is_bf16 ? 0x00800080u : 0x04000400u;
  return (((pair & exponent) + one) & 0x80008000u) != 0;
}
