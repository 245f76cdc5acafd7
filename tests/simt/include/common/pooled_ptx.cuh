// Stands in for kernel_specs/common/pooled_ptx.cuh on the host.
#pragma once

#include <cmath>

#include "common/half_ptx.cuh"

struct alignas(16) Vector {
  uint32 words[4];
};

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

inline float divide(float dividend, float divisor) { return dividend / divisor; }

template <typename Word>
void store_streaming(Word* address, const Word& value) {
  *address = value;
}
