// What the checks of an operator need to know of its arguments. Knows no torch: the checks that the
// build generates from operators.toml work on these records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace tbe_aot {

enum class TensorDtype : uint8_t {
  k_float32,
  k_float16,
  k_bfloat16,
  k_float64,
  k_int32,
  k_int64,
  // Never accepted; told apart to be named in a message.
  k_bool,
  k_uint8,
  k_int8,
  k_int16,
  k_complex64,
  k_complex128,
  k_other,
};

constexpr std::string_view dtype_name(TensorDtype dtype) {
  constexpr std::string_view kNames[] = {
      "float32", "float16", "bfloat16", "float64",   "int32",      "int64",         "bool",
      "uint8",   "int8",    "int16",    "complex64", "complex128", "another dtype",
  };
  return kNames[static_cast<size_t>(dtype)];
}

constexpr uint32_t dtype_bit(TensorDtype dtype) { return 1u << static_cast<uint32_t>(dtype); }

enum class DeviceKind : uint8_t { kCpu, kCuda, kOther };

struct TensorInfo {
  bool given = false;  // Present and not empty: an empty optional tensor means the same as none.
  bool contiguous = true;
  bool requires_grad = false;  // Only looked at while grad mode is on.
  TensorDtype dtype = TensorDtype::k_other;
  DeviceKind device_kind = DeviceKind::kOther;
  int32_t device_index = -1;
  int32_t rank = 0;
  int64_t numel = 0;
  const int64_t* sizes = nullptr;  // [rank]
};

// The type of an argument in an operator's schema.
enum class ArgumentKind : uint8_t {
  kTensor,
  kOptionalTensor,
  kIntegerList,
  kString,
  kInteger,
  kFloat,
};

// The value of an `int[]` argument; does not own the integers.
struct IntegerList {
  const int64_t* values = nullptr;
  int64_t count = 0;

  int64_t size() const { return count; }
  int64_t operator[](int64_t index) const { return values[index]; }
  // Of the integers from `first` on, every `step`th; 0 of none.
  int64_t sum_from(int64_t first, int64_t step) const;
  int64_t min_from(int64_t first, int64_t step) const;
  int64_t max_from(int64_t first, int64_t step) const;
};

// What one tensor argument may be.
struct TensorRule {
  const char* name;
  uint32_t dtypes;  // dtype_bit() of each.
  int32_t rank;     // 0: any.
  bool contiguous;
  bool gradient;
};

namespace detail {

[[noreturn]] void refuse_tensor(const char* op, const TensorRule& rule, const TensorInfo& tensor);
[[noreturn]] void refuse_device(const char* op, const char* name, const TensorInfo& tensor,
                                const char* reference_name, const TensorInfo& reference);
[[noreturn]] void refuse_value(const char* op, const char* name, std::string_view value,
                               std::initializer_list<std::string_view> allowed);

}  // namespace detail

// Each of these throws Error with the operator, the argument, what was given and what is allowed.

inline void expect_tensor(const char* op, const TensorRule& rule, const TensorInfo& tensor) {
  if ((rule.dtypes & dtype_bit(tensor.dtype)) == 0 ||
      (rule.rank != 0 && tensor.rank != rule.rank) || (rule.contiguous && !tensor.contiguous) ||
      (!rule.gradient && tensor.requires_grad)) {
    detail::refuse_tensor(op, rule, tensor);
  }
}

inline void expect_same_device(const char* op, const char* name, const TensorInfo& tensor,
                               const char* reference_name, const TensorInfo& reference) {
  if (tensor.device_kind != reference.device_kind ||
      tensor.device_index != reference.device_index) {
    detail::refuse_device(op, name, tensor, reference_name, reference);
  }
}

inline void expect_one_of(const char* op, const char* name, std::string_view value,
                          std::initializer_list<std::string_view> allowed) {
  for (std::string_view candidate : allowed) {
    if (value == candidate) return;
  }
  detail::refuse_value(op, name, value, allowed);
}

}  // namespace tbe_aot
