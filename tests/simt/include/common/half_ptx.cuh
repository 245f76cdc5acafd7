// Stands in for kernel_specs/common/half_ptx.cuh on the host: the same numbers, in the same lanes.
#pragma once

#include <cmath>
#include <cstring>

#include "common/cuda_types.cuh"

inline float bits_to_float(uint32 bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32 float_to_bits(float value) {
  uint32 bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float from_bf16(unsigned short bits) {
  return bits_to_float(static_cast<uint32>(bits) << 16);
}

inline unsigned short round_to_bf16(float value) {
  const uint32 bits = float_to_bits(value);
  if (value != value) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_fp16(unsigned short bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                              : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  if (exponent == 31) value = mantissa == 0 ? INFINITY : NAN;
  return bits >> 15 != 0 ? -value : value;
}

namespace simt {

template <typename Widen>
void multiply_add(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1, Widen widen) {
  const auto join = [](uint32 low, uint32 high) { return static_cast<uint64_t>(high) << 32 | low; };
  const auto a_left = current_block->exchange(join(a[0], a[1]));
  const auto a_right = current_block->exchange(join(a[2], a[3]));
  const auto b = current_block->exchange(join(b0, b1));
  const auto half = [&](uint64_t words, int word, int which) {
    return widen(static_cast<unsigned short>(words >> (word * 32 + which * 16)));
  };
  const int lane = threadIdx.x % kWarpSize;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4;
    const int column = lane % 4 * 2 + i % 2;
    double sum = d[i];
    for (int k = 0; k < 16; ++k) {
      const auto& of_a = k < 8 ? a_left : a_right;
      const auto a_words = of_a[static_cast<size_t>(row * 4 + k % 8 / 2)];
      const auto b_words = b[static_cast<size_t>(column * 4 + k % 8 / 2)];
      sum += static_cast<double>(half(a_words, i / 2, k % 2)) * half(b_words, k / 8, k % 2);
    }
    d[i] = static_cast<float>(sum);
  }
}

}  // namespace simt

inline void multiply_add_fp16(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
  simt::multiply_add(d, a, b0, b1, from_fp16);
}

inline void multiply_add_bf16(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
  simt::multiply_add(d, a, b0, b1, from_bf16);
}

// Only differences that are small integers, as ExactIntegers has them.
template <typename Widen>
uint32 subtract_integers(uint32 from, uint32 what, int mantissa_bits, int bias, Widen widen) {
  uint32 result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const float difference = widen(static_cast<unsigned short>(from >> shift)) -
                             widen(static_cast<unsigned short>(what >> shift));
    if (difference == 0) continue;
    int exponent = 0;
    const float fraction = std::frexp(difference, &exponent);  // In [1/2, 1).
    const auto mantissa = static_cast<uint32>(std::ldexp(fraction, mantissa_bits + 1));
    const auto biased = static_cast<uint32>(exponent - 1 + bias);
    result |= (biased << mantissa_bits | (mantissa & ((1u << mantissa_bits) - 1))) << shift;
  }
  return result;
}

inline uint32 subtract_fp16(uint32 from, uint32 what) {
  return subtract_integers(from, what, 10, 15, from_fp16);
}

inline uint32 subtract_bf16(uint32 from, uint32 what) {
  return subtract_integers(from, what, 7, 127, from_bf16);
}

inline unsigned short round_to_fp16(float value) {
  const auto sign = static_cast<unsigned short>(float_to_bits(value) >> 16 & 0x8000);
  if (value != value) return 0x7fff;
  const float magnitude = std::fabs(value);
  // From half a unit in the last place above the largest number on.
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  // magnitude < 2^exponent; numbers below 2^-14 have the last place of those from there on.
  int exponent = -13;
  if (magnitude >= 0x1p-14f) std::frexp(magnitude, &exponent);
  const int last_place = exponent - 11;
  // Halves go to even.
  const auto places = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -last_place)));
  return static_cast<unsigned short>(sign + ((last_place + 24) << 10) + places);
}

inline uint32 to_fp16(float first, float second) {
  return round_to_fp16(first) | static_cast<uint32>(round_to_fp16(second)) << 16;
}

inline uint32 to_bf16(float first, float second) {
  return round_to_bf16(first) | static_cast<uint32>(round_to_bf16(second)) << 16;
}
