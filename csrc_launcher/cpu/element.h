// Element types of tables and outputs: widening a row's elements, rounding a result once.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace tbe_aot::cpu {

using Half = c10::Half;
using BFloat16 = c10::BFloat16;

// What rows are widened to before they are added.
template <typename Weight>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<float> {
  using type = double;
};
template <typename Weight>
using Accumulator = typename AccumulatorOf<Weight>::type;

// The float that a second rounding to half precision takes to the same value as `value` itself:
// rounded to odd, so that a tie is not mistaken for exact.
inline float round_to_odd(double value) {
  float rounded = static_cast<float>(value);
  if (static_cast<double>(rounded) == value || std::isnan(value)) return rounded;
  if (std::fabs(static_cast<double>(rounded)) > std::fabs(value)) {
    rounded = std::nextafter(rounded, 0.0f);
  }
  uint32_t bits = 0;
  std::memcpy(&bits, &rounded, sizeof(bits));
  bits |= 1;
  std::memcpy(&rounded, &bits, sizeof(bits));
  return rounded;
}

template <typename Output>
Output round_once(float value) {
  return static_cast<Output>(value);
}
template <typename Output>
Output round_once(double value) {
  return static_cast<Output>(round_to_odd(value));
}
template <>
inline float round_once<float>(double value) {
  return static_cast<float>(value);
}

}  // namespace tbe_aot::cpu
