// From an operator's arguments to what the planner asks for.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "core/planner.h"
#include "ops/stable_tensor.h"
#include "ops/tensor_info.h"

namespace tbe_aot {

// A weight or output dtype, one of the three that the operators accept.
constexpr Dtype to_planner(TensorDtype dtype) {
  switch (dtype) {
    case TensorDtype::k_float16:
      return Dtype::kFloat16;
    case TensorDtype::k_bfloat16:
      return Dtype::kBFloat16;
    default:
      return Dtype::kFloat32;
  }
}

// An `output_dtype` argument.
inline TensorDtype to_tensor_dtype(std::string_view name) {
  if (name == dtype_name(TensorDtype::k_float16)) return TensorDtype::k_float16;
  if (name == dtype_name(TensorDtype::k_bfloat16)) return TensorDtype::k_bfloat16;
  return TensorDtype::k_float32;
}

// A `small_tables` argument.
inline SmallTables to_small_tables(std::string_view name) {
  if (name == "never") return SmallTables::kNever;
  if (name == "always") return SmallTables::kAlways;
  return SmallTables::kAuto;
}

// A `fused_long_runs` argument.
inline FusedLongRuns to_fused_long_runs(std::string_view name) {
  if (name == "never") return FusedLongRuns::kNever;
  if (name == "always") return FusedLongRuns::kAlways;
  return FusedLongRuns::kAuto;
}

// A `fused_checks` argument.
inline FusedChecks to_fused_checks(std::string_view name) {
  if (name == "never") return FusedChecks::kNever;
  if (name == "always") return FusedChecks::kAlways;
  return FusedChecks::kAuto;
}

// What indices and offsets are checked in: the wider dtype of the two, so that an offset beyond
// int32 does not wrap around into bounds. What passes the check fits the indices' dtype.
inline TensorDtype checked_dtype(const TensorInfo& indices, const TensorInfo& offsets) {
  return offsets.dtype == TensorDtype::k_int64 ? offsets.dtype : indices.dtype;
}

// What indices and offsets are read as: the indices' dtype, or int64. Offsets go up to N. The CPU
// looks at them, and must not see one beyond int32 wrap around.
inline TensorDtype lookup_dtype(const TensorInfo& indices, const TensorInfo& offsets) {
  const bool keep_offsets =
      offsets.device_kind == DeviceKind::kCpu && offsets.dtype == TensorDtype::k_int64;
  const bool narrow = indices.dtype == TensorDtype::k_int32 && !keep_offsets &&
                      indices.numel <= std::numeric_limits<int32_t>::max();
  return narrow ? TensorDtype::k_int32 : TensorDtype::k_int64;
}

// The address of the elements, dense and of `dtype`; replaces `tensor` by a copy where it is not.
inline const void* dense_data(StableTensor& tensor, const TensorInfo& info, TensorDtype dtype) {
  if (info.dtype != dtype || !info.contiguous) tensor = tensor.dense(dtype);
  return tensor.data();
}

}  // namespace tbe_aot
