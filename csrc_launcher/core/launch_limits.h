// Limits of a launch, and checked conversions to the widths that kernels take.
#pragma once

#include <cstdint>
#include <limits>

#include "core/error.h"

namespace tbe_aot {

inline constexpr int64_t kMaxGridX = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kMaxGridY = 65535;

constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

// Throws Error when `value` is negative or does not fit.
inline int32_t to_int32(int64_t value, const char* what) {
  if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
    fail(what, " is ", value, ", allowed are 0 to ", std::numeric_limits<int32_t>::max());
  }
  return static_cast<int32_t>(value);
}

}  // namespace tbe_aot
