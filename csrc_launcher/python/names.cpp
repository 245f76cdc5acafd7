#include "python/names.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>

#include "core/c_api.h"

namespace tbe_aot::python {
namespace {

// By the number of the dtype.
constexpr std::array kDtypes{"fp32", "fp16", "bf16"};

template <typename Entry>
int32_t find(const char* what, const Entry* entries, int32_t count, const std::string& name) {
  std::string known;
  for (int32_t i = 0; i < count; ++i) {
    if (name == entries[i].name) return i;
    known += (i == 0 ? "" : ", ") + std::string(entries[i].name);
  }
  throw pybind11::value_error("no " + std::string(what) + " '" + name +
                              "' in this build; it holds " + known);
}

}  // namespace

const BuildInfo& build() { return *tbe_aot_build_info(); }

int32_t find_arch(const std::string& name) {
  return find("arch", build().archs, build().arch_count, name);
}

int32_t find_kernel(const std::string& name) {
  return find("kernel", build().kernels, build().kernel_count, name);
}

Dtype find_dtype(const std::string& name) {
  const auto* found = std::find(kDtypes.begin(), kDtypes.end(), name);
  if (found == kDtypes.end()) {
    throw pybind11::value_error("no dtype '" + name + "'; allowed are fp32, fp16, bf16");
  }
  return static_cast<Dtype>(found - kDtypes.begin());
}

const char* dtype_name(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)]; }

}  // namespace tbe_aot::python
