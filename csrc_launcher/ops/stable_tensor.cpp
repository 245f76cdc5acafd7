#include "ops/stable_tensor.h"

#include <torch/headeronly/version.h>

#include <array>
#include <cstring>

#include "core/error.h"

namespace tbe_aot {
namespace {

void expect_success(AOTITorchError code, const char* task) {
  // Torch has printed its own message to stderr; the C interface of 2.10 cannot hand it over.
  if (code != 0) fail("LibTorch could not ", task);
}

// Torch's numbers of the dtypes, in the order of TensorDtype.
const std::array<int32_t, static_cast<size_t>(TensorDtype::k_other)>& torch_dtypes() {
  static const std::array<int32_t, static_cast<size_t>(TensorDtype::k_other)> dtypes = {
      aoti_torch_dtype_float32(), aoti_torch_dtype_float16(),   aoti_torch_dtype_bfloat16(),
      aoti_torch_dtype_float64(), aoti_torch_dtype_int32(),     aoti_torch_dtype_int64(),
      aoti_torch_dtype_bool(),    aoti_torch_dtype_uint8(),     aoti_torch_dtype_int8(),
      aoti_torch_dtype_int16(),   aoti_torch_dtype_complex64(), aoti_torch_dtype_complex128(),
  };
  return dtypes;
}

int32_t to_torch(TensorDtype dtype) { return torch_dtypes()[static_cast<size_t>(dtype)]; }

TensorDtype from_torch(int32_t dtype) {
  const auto& dtypes = torch_dtypes();
  size_t i = 0;
  while (i < dtypes.size() && dtypes[i] != dtype) ++i;
  return static_cast<TensorDtype>(i);
}

template <typename T>
StableIValue box(T value) {
  static_assert(sizeof(T) <= sizeof(StableIValue));
  StableIValue boxed = 0;
  std::memcpy(&boxed, &value, sizeof(T));
  return boxed;
}

template <typename T>
T unbox(StableIValue boxed) {
  static_assert(sizeof(T) <= sizeof(StableIValue));
  T value;
  std::memcpy(&value, &boxed, sizeof(T));
  return value;
}

// An optional value is a pointer to the value, owned by whoever receives it.
template <typename T>
StableIValue box_optional(T value) {
  return box(new StableIValue(box(value)));
}

StableIValue box_tensor(AtenTensorHandle tensor) {
  AtenTensorHandle shared = nullptr;
  expect_success(aoti_torch_new_tensor_handle(tensor, &shared), "share a tensor");
  return box(shared);
}

template <size_t count>
StableIValue call(const char* op, const char* overload, std::array<StableIValue, count> stack) {
  expect_success(torch_call_dispatcher(op, overload, stack.data(), TORCH_ABI_VERSION), op);
  return stack[0];
}

}  // namespace

TensorInfo StableTensor::info() const {
  TensorInfo info;
  if (handle_ == nullptr) return info;
  int32_t dtype = 0;
  int32_t device_type = 0;
  int64_t rank = 0;
  int64_t* sizes = nullptr;
  AOTITorchError failed = aoti_torch_get_dtype(handle_, &dtype);
  failed |= aoti_torch_get_device_type(handle_, &device_type);
  failed |= aoti_torch_get_device_index(handle_, &info.device_index);
  failed |= aoti_torch_get_dim(handle_, &rank);
  failed |= aoti_torch_get_sizes(handle_, &sizes);
  failed |= aoti_torch_get_numel(handle_, &info.numel);
  failed |= aoti_torch_is_contiguous(handle_, &info.contiguous);
  expect_success(failed, "describe a tensor");
  static const int32_t cuda = aoti_torch_device_type_cuda();
  static const int32_t cpu = aoti_torch_device_type_cpu();
  info.given = info.numel != 0;
  info.dtype = from_torch(dtype);
  info.device_kind = device_type == cuda  ? DeviceKind::kCuda
                     : device_type == cpu ? DeviceKind::kCpu
                                          : DeviceKind::kOther;
  // A CPU tensor may say -1 or 0.
  if (info.device_kind == DeviceKind::kCpu) info.device_index = 0;
  info.rank = static_cast<int32_t>(rank);
  info.sizes = sizes;
  return info;
}

bool StableTensor::requires_grad() const {
  if (handle_ == nullptr) return false;
  // The C interface cannot ask for requires_grad, but a view that autograd records is no leaf.
  const StableTensor view(
      unbox<AtenTensorHandle>(call<1>("aten::alias", "", {box_tensor(handle_)})));
  return !unbox<bool>(call<1>("aten::is_leaf", "", {box_tensor(view.handle_)}));
}

const void* StableTensor::data() const {
  const void* data = nullptr;
  if (handle_ != nullptr) {
    expect_success(torch_get_const_data_ptr(handle_, &data), "give a tensor's address");
  }
  return data;
}

void* StableTensor::mutable_data() const {
  void* data = nullptr;
  if (handle_ != nullptr) {
    expect_success(torch_get_mutable_data_ptr(handle_, &data), "give a tensor's address");
  }
  return data;
}

StableTensor StableTensor::dense(TensorDtype dtype) const {
  static const int32_t contiguous = aoti_torch_memory_format_contiguous_format();
  const StableIValue none = box(nullptr);
  const TensorInfo now = info();
  if (now.dtype != dtype) {
    // The copy that changes the dtype is contiguous too.
    return StableTensor(unbox<AtenTensorHandle>(
        call<8>("aten::to", "dtype_layout",
                {box_tensor(handle_), box_optional(to_torch(dtype)), none, none, none, box(false),
                 box(false), box_optional(contiguous)})));
  }
  if (!now.contiguous) {
    return StableTensor(unbox<AtenTensorHandle>(
        call<2>("aten::contiguous", "", {box_tensor(handle_), box(contiguous)})));
  }
  return StableTensor(unbox<AtenTensorHandle>(box_tensor(handle_)));
}

StableTensor StableTensor::clone() const {
  static const int32_t contiguous = aoti_torch_memory_format_contiguous_format();
  return StableTensor(unbox<AtenTensorHandle>(
      call<2>("aten::clone", "", {box_tensor(handle_), box_optional(contiguous)})));
}

StableTensor StableTensor::to_cpu() const {
  static const uint64_t cpu = static_cast<uint64_t>(aoti_torch_device_type_cpu()) << 32;
  const StableIValue none = box(nullptr);
  return StableTensor(unbox<AtenTensorHandle>(call<8>(
      "aten::to", "dtype_layout",
      {box_tensor(handle_), none, none, box_optional(cpu), none, box(false), box(false), none})));
}

StableTensor empty_tensor(std::initializer_list<int64_t> sizes, TensorDtype dtype,
                          DeviceKind device_kind, int32_t device_index) {
  int64_t strides[2];
  if (sizes.size() > 2) fail("a tensor of ", sizes.size(), " dimensions is never allocated here");
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes.begin()[i] > 1 ? sizes.begin()[i] : 1;
  }
  const int32_t device_type = device_kind == DeviceKind::kCuda ? aoti_torch_device_type_cuda()
                                                               : aoti_torch_device_type_cpu();
  AtenTensorHandle handle = nullptr;
  const AOTITorchError failed =
      aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.begin(), strides,
                               to_torch(dtype), device_type, device_index, &handle);
  if (failed != 0) {
    int64_t numel = 1;
    for (int64_t size : sizes) numel *= size;
    fail("LibTorch could not allocate a result of ", numel, " elements of ", dtype_name(dtype));
  }
  return StableTensor(handle);
}

BoxedArguments::BoxedArguments(const StableIValue* stack, uint64_t given_count,
                               const ArgumentKind* kinds, size_t count)
    : kinds_(kinds), count_(count) {
  if (given_count != count || count > kMaxCount) {
    count_ = 0;
    fail("the operator has ", count, " arguments, its call ", given_count);
  }
  for (size_t i = 0; i < count; ++i) {
    values_[i] = stack[i];
    if (kinds[i] == ArgumentKind::kTensor) {
      tensors_[i] = StableTensor(unbox<AtenTensorHandle>(stack[i]));
    } else if (kinds[i] == ArgumentKind::kOptionalTensor) {
      auto* boxed = unbox<StableIValue*>(stack[i]);
      if (boxed == nullptr) continue;
      tensors_[i] = StableTensor(unbox<AtenTensorHandle>(*boxed));
      delete boxed;
    }
  }
}

BoxedArguments::~BoxedArguments() {
  for (size_t i = 0; i < count_; ++i) {
    switch (kinds_[i]) {
      case ArgumentKind::kIntegerList:
        torch_delete_list(unbox<StableListHandle>(values_[i]));
        break;
      case ArgumentKind::kString:
        torch_delete_string(unbox<StringHandle>(values_[i]));
        break;
      case ArgumentKind::kTensor:
      case ArgumentKind::kOptionalTensor:
      case ArgumentKind::kInteger:
      case ArgumentKind::kFloat:
        break;
    }
  }
}

IntegerList BoxedArguments::integer_list(size_t position) {
  const auto list = unbox<StableListHandle>(values_[position]);
  size_t size = 0;
  expect_success(torch_list_size(list, &size), "read a list");
  int64_t* values = inline_integers_;
  if (size > kInlineIntegers) {
    integers_.resize(size);
    values = integers_.data();
  }
  for (size_t i = 0; i < size; ++i) {
    StableIValue value = 0;
    expect_success(torch_list_get_item(list, i, &value), "read a list");
    values[i] = unbox<int64_t>(value);
  }
  return {values, static_cast<int64_t>(size)};
}

std::string_view BoxedArguments::string(size_t position) const {
  const auto handle = unbox<StringHandle>(values_[position]);
  const char* text = nullptr;
  size_t length = 0;
  AOTITorchError failed = torch_string_c_str(handle, &text);
  failed |= torch_string_length(handle, &length);
  expect_success(failed, "read a string");
  return {text, length};
}

int64_t BoxedArguments::integer(size_t position) const { return unbox<int64_t>(values_[position]); }

double BoxedArguments::real(size_t position) const { return unbox<double>(values_[position]); }

void return_tensor(StableIValue* slot, StableTensor tensor) { *slot = box(tensor.release()); }

}  // namespace tbe_aot
