#include "ops/tensor_info.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"

namespace tbe_aot {
namespace {

// "a", "a or b", "a, b or c".
std::string alternatives(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

std::string dtype_alternatives(uint32_t dtypes) {
  std::vector<std::string> names;
  for (uint32_t i = 0; i <= static_cast<uint32_t>(TensorDtype::k_other); ++i) {
    const auto dtype = static_cast<TensorDtype>(i);
    if ((dtypes & dtype_bit(dtype)) != 0) names.emplace_back(dtype_name(dtype));
  }
  return alternatives(names);
}

std::string device_name(const TensorInfo& tensor) {
  switch (tensor.device_kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return join("cuda:", tensor.device_index);
    case DeviceKind::kOther:
      return "another kind of device";
  }
  return "";
}

}  // namespace

int64_t IntegerList::sum_from(int64_t first, int64_t step) const {
  int64_t sum = 0;
  for (int64_t i = first; i < count; i += step) sum += values[i];
  return sum;
}

int64_t IntegerList::min_from(int64_t first, int64_t step) const {
  int64_t least = first < count ? values[first] : 0;
  for (int64_t i = first; i < count; i += step) least = std::min(least, values[i]);
  return least;
}

int64_t IntegerList::max_from(int64_t first, int64_t step) const {
  int64_t most = first < count ? values[first] : 0;
  for (int64_t i = first; i < count; i += step) most = std::max(most, values[i]);
  return most;
}

namespace detail {

void refuse_tensor(const char* op, const TensorRule& rule, const TensorInfo& tensor) {
  if ((rule.dtypes & dtype_bit(tensor.dtype)) == 0) {
    fail(op, ": ", rule.name, " is ", dtype_name(tensor.dtype), ", expected ",
         dtype_alternatives(rule.dtypes));
  }
  if (rule.rank != 0 && tensor.rank != rule.rank) {
    fail(op, ": ", rule.name, " has ", tensor.rank, " dimensions, expected ", rule.rank);
  }
  if (rule.contiguous && !tensor.contiguous) {
    fail(op, ": ", rule.name, " is not contiguous, expected contiguous memory");
  }
  fail(op, ": ", rule.name, " requires grad, but this operator has no gradient: call it under ",
       "torch.no_grad() or pass ", rule.name, ".detach()");
}

void refuse_device(const char* op, const char* name, const TensorInfo& tensor,
                   const char* reference_name, const TensorInfo& reference) {
  fail(op, ": ", name, " is on ", device_name(tensor), ", expected ", device_name(reference),
       ", the device of ", reference_name);
}

void refuse_value(const char* op, const char* name, std::string_view value,
                  std::initializer_list<std::string_view> allowed) {
  std::vector<std::string> words;
  for (std::string_view word : allowed) words.push_back(join("'", word, "'"));
  fail(op, ": ", name, " is '", value, "', expected ", alternatives(words));
}

}  // namespace detail
}  // namespace tbe_aot
