// Tensors through LibTorch's stable C interface, without the shared_ptr per tensor that its C++
// wrapper allocates: an operator's host time is counted in microseconds.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/tensor_info.h"

namespace tbe_aot {

// Owns a tensor handle; may hold none.
class StableTensor {
 public:
  StableTensor() = default;
  explicit StableTensor(AtenTensorHandle handle) : handle_(handle) {}
  StableTensor(StableTensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  StableTensor& operator=(StableTensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  StableTensor(const StableTensor&) = delete;
  StableTensor& operator=(const StableTensor&) = delete;
  ~StableTensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  explicit operator bool() const { return handle_ != nullptr; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

  // Nothing given when it holds no tensor. Leaves requires_grad to requires_grad().
  TensorInfo info() const;
  // Whether autograd would record what is done with it now.
  bool requires_grad() const;

  const void* data() const;
  void* mutable_data() const;

  // The same elements, contiguous and of `dtype`: this tensor's own memory where it is so already.
  StableTensor dense(TensorDtype dtype) const;
  // A contiguous copy.
  StableTensor clone() const;
  // A copy on the CPU; waits for the device.
  StableTensor to_cpu() const;

 private:
  AtenTensorHandle handle_ = nullptr;
};

StableTensor empty_tensor(std::initializer_list<int64_t> sizes, TensorDtype dtype,
                          DeviceKind device_kind, int32_t device_index);

// The arguments of a boxed call. Takes ownership of all of them at once, so that an error in one
// leaks none of the others.
class BoxedArguments {
 public:
  static constexpr size_t kMaxCount = 28;

  // `kinds` has one entry per argument and outlives this object.
  BoxedArguments(const StableIValue* stack, uint64_t given_count, const ArgumentKind* kinds,
                 size_t count);
  BoxedArguments(const BoxedArguments&) = delete;
  BoxedArguments& operator=(const BoxedArguments&) = delete;
  ~BoxedArguments();

  StableTensor& tensor(size_t position) { return tensors_[position]; }
  IntegerList integer_list(size_t position);  // Valid until the next call for a list.
  std::string_view string(size_t position) const;
  int64_t integer(size_t position) const;
  double real(size_t position) const;

 private:
  static constexpr size_t kInlineIntegers = 64;

  const ArgumentKind* kinds_;
  size_t count_;
  StableIValue values_[kMaxCount];  // Tensors live in tensors_ instead.
  StableTensor tensors_[kMaxCount];
  int64_t inline_integers_[kInlineIntegers];
  std::vector<int64_t> integers_;
};

// Puts a result on the stack of a boxed call.
void return_tensor(StableIValue* slot, StableTensor tensor);

}  // namespace tbe_aot
