// From what a request says to values of the kernels' axes. Every kernel has enumerations of its
// own, with the same labels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/error.h"
#include "core/layout.h"
#include "core/planner.h"

namespace tbe_aot {

// Aligned variants move this many bytes at once.
inline constexpr int64_t kVectorBytes = 16;

inline bool is_vector_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kVectorBytes == 0;
}

// `what` is whose dtype it is.
template <typename Axis>
Axis dtype_axis(Dtype dtype, const char* what) {
  switch (dtype) {
    case Dtype::kFloat32:
      return Axis::fp32;
    case Dtype::kFloat16:
      return Axis::fp16;
    case Dtype::kBFloat16:
      return Axis::bf16;
  }
  fail(what, " dtype number ", static_cast<int32_t>(dtype), " is none of fp32, fp16, bf16");
}

template <typename Axis>
Axis index_width_axis(int32_t index_width) {
  if (index_width == 32) return Axis::i32;
  if (index_width == 64) return Axis::i64;
  fail("indices have ", index_width, " bits, allowed are 32 and 64");
}

// `values` are the integers of the axis, in its order.
template <typename Axis, size_t count>
Axis bucket_axis(int32_t bucket, const int32_t (&values)[count]) {
  const int32_t* found = std::find(values, values + count, bucket);
  if (found == values + count) {
    std::string known;
    for (const int32_t value : values) known += join(" ", value);
    fail("the layout has a group of bucket ", bucket, "; the kernels' buckets are", known);
  }
  return static_cast<Axis>(found - values);
}

// Why the launch of a group is aligned or not, where rows of weights and of the gradient matter;
// `generic_reason`: why all of the call are generic, or null.
inline std::string describe_row_alignment(const FeatureGroup& group, const char* generic_reason) {
  if (group.aligned < 2) {
    return "generic because rows of weights or gradient do not all start at multiples of 16 bytes";
  }
  if (generic_reason == nullptr) {
    return "aligned because rows of weights and gradient start at multiples of 16 bytes";
  }
  return join("generic although the group is aligned, because ", generic_reason);
}

}  // namespace tbe_aot
