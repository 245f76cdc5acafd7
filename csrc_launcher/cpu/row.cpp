#include "cpu/row.h"

#include <cstring>

// Each function exists once for AVX2 and once for every x86-64; the loader chooses. Not for FMA: a
// sum must not depend on the machine.
#if defined(__x86_64__)
#define TBE_AOT_VECTOR __attribute__((target_clones("avx2", "default")))
#else
#define TBE_AOT_VECTOR
#endif

namespace tbe_aot::cpu {
namespace {

// A trip count that is known makes the compiler use vectors.
constexpr int64_t kUnroll = 16;

[[gnu::always_inline]] inline float from_bits(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

[[gnu::always_inline]] inline uint32_t to_bits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

[[gnu::always_inline]] inline double widen(float value) { return value; }

[[gnu::always_inline]] inline float widen(BFloat16 value) {
  return from_bits(static_cast<uint32_t>(value.x) << 16);
}

// Without the branches of the general conversion, which vectors cannot follow: moving exponent and
// mantissa into place leaves the exponent short by 112, for numbers below the normal ones as well.
[[gnu::always_inline]] inline float widen(Half value) {
  const uint32_t bits = value.x;
  const uint32_t magnitude = (bits & 0x7fffu) << 13;
  const uint32_t scaled = to_bits(from_bits(magnitude) * 0x1p112f);
  // Infinity and NaN.
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return from_bits(scaled | special | (bits & 0x8000u) << 16);
}

template <typename Weight, typename Sum>
[[gnu::always_inline]] inline void add(const Weight* row, int64_t columns, Sum* sums) {
  int64_t c = 0;
  for (; c + kUnroll <= columns; c += kUnroll) {
    for (int64_t i = 0; i < kUnroll; ++i) sums[c + i] += static_cast<Sum>(widen(row[c + i]));
  }
  for (; c < columns; ++c) sums[c] += static_cast<Sum>(widen(row[c]));
}

template <typename Weight, typename Sum>
[[gnu::always_inline]] inline void add(const Weight* row, int64_t columns, Sum* sums, Sum weight) {
  int64_t c = 0;
  for (; c + kUnroll <= columns; c += kUnroll) {
    for (int64_t i = 0; i < kUnroll; ++i)
      sums[c + i] += weight * static_cast<Sum>(widen(row[c + i]));
  }
  for (; c < columns; ++c) sums[c] += weight * static_cast<Sum>(widen(row[c]));
}

}  // namespace

TBE_AOT_VECTOR void add_row(const float* row, int64_t columns, double* sums) {
  add(row, columns, sums);
}
TBE_AOT_VECTOR void add_row(const Half* row, int64_t columns, float* sums) {
  add(row, columns, sums);
}
TBE_AOT_VECTOR void add_row(const BFloat16* row, int64_t columns, float* sums) {
  add(row, columns, sums);
}
TBE_AOT_VECTOR void add_row(const float* row, int64_t columns, double* sums, double weight) {
  add(row, columns, sums, weight);
}
TBE_AOT_VECTOR void add_row(const float* row, int64_t columns, float* sums, float weight) {
  add(row, columns, sums, weight);
}
TBE_AOT_VECTOR void add_row(const Half* row, int64_t columns, float* sums, float weight) {
  add(row, columns, sums, weight);
}
TBE_AOT_VECTOR void add_row(const BFloat16* row, int64_t columns, float* sums, float weight) {
  add(row, columns, sums, weight);
}

}  // namespace tbe_aot::cpu
