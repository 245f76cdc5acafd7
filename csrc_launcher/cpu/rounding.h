// Stochastic rounding, to the bits that the kernels' kernel_specs/common/rounding.py gives.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu/element.h"

namespace tbe_aot::cpu {

// A bijection in which every bit depends on every other: lowbias32 of Chris Wellons'
// hash-prospector.
inline uint32_t mixed(uint32_t word) {
  word = (word ^ word >> 16) * 0x7feb352du;
  word = (word ^ word >> 15) * 0x846ca68bu;
  return word ^ word >> 16;
}

// The random bits of a row's elements: a function of seed, global row and column.
class RowRandom {
 public:
  RowRandom(int64_t seed, int64_t row) {
    const auto seed_bits = static_cast<uint64_t>(seed);
    const auto row_bits = static_cast<uint64_t>(row);
    const uint32_t seed_key =
        mixed(static_cast<uint32_t>(seed_bits) ^ mixed(static_cast<uint32_t>(seed_bits >> 32)));
    key_ = mixed(static_cast<uint32_t>(row_bits) +
                 static_cast<uint32_t>(row_bits >> 32) * 0x9e3779b9u + seed_key);
  }

  // 16 bits, of the word that a pair of columns shares.
  uint32_t bits(int64_t column) const {
    const uint32_t word = mixed(key_ + static_cast<uint32_t>(column >> 1) * 0x9e3779b9u);
    return column % 2 != 0 ? word >> 16 : word & 0xffffu;
  }

 private:
  uint32_t key_;
};

namespace rounding {

inline uint32_t bits_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float float_of(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace rounding

// One of the two numbers around `value`, by chance; numbers of Weight, infinities and NaN stay.
template <typename Weight>
Weight round_stochastically(float value, const RowRandom& random, int64_t column);

template <>
inline float round_stochastically(float value, const RowRandom& /*random*/, int64_t /*column*/) {
  return value;
}

template <>
inline BFloat16 round_stochastically(float value, const RowRandom& random, int64_t column) {
  if (std::isnan(value)) return static_cast<BFloat16>(value);
  const uint32_t bits = rounding::bits_of(value) + random.bits(column);
  return static_cast<BFloat16>(rounding::float_of(bits & 0xffff0000u));
}

template <>
inline Half round_stochastically(float value, const RowRandom& random, int64_t column) {
  if (std::isnan(value)) return static_cast<Half>(value);
  const uint32_t drawn = random.bits(column);
  const uint32_t added = column % 2 != 0 ? drawn >> 3 : drawn & 0x1fffu;
  // Times 2^-112 numbers below the normal ones of fp16 are such in fp32 too, and all drop 13 bits.
  const uint32_t bits = rounding::bits_of(value * 0x1p-112f) + added;
  return static_cast<Half>(rounding::float_of(bits & 0xffffe000u) * 0x1p112f);
}

}  // namespace tbe_aot::cpu
