#include "core/kernel_lookup.h"

#include <string>

#include "core/error.h"

namespace tbe_aot {
namespace {

// "weight_dtype=fp16, bucket=d128, ..."
std::string describe_cell(const KernelInfo& kernel, int32_t cell) {
  std::string text;
  for (int32_t i = kernel.axis_count - 1; i >= 0; --i) {
    const AxisInfo& axis = kernel.axes[i];
    text = join(axis.name, "=", axis.labels[cell % axis.size], text.empty() ? "" : ", ", text);
    cell /= axis.size;
  }
  return text;
}

}  // namespace

const VariantInfo& get_variant(int32_t arch, int32_t kernel, int32_t variant) {
  if (arch < 0 || arch >= kBuild.arch_count) {
    fail("there is no arch number ", arch, ": this build has ", kBuild.arch_count);
  }
  if (kernel < 0 || kernel >= kBuild.kernel_count) {
    fail("there is no kernel number ", kernel, ": this build has ", kBuild.kernel_count);
  }
  const KernelInfo& info = kBuild.kernels[kernel];
  if (variant < 0 || variant >= info.variant_count) {
    fail("there is no variant number ", variant, " of '", info.name, "': it has ",
         info.variant_count);
  }
  if (info.variants[arch] == nullptr) {
    fail("the kernel '", info.name, "' is not made for ", kBuild.archs[arch].name);
  }
  return info.variants[arch][variant];
}

bool has_variant(int32_t kernel, int32_t cell) { return kBuild.kernels[kernel].cells[cell] >= 0; }

Choice choose_variant(int32_t arch, int32_t kernel, int32_t cell) {
  const KernelInfo& info = kBuild.kernels[kernel];
  const int32_t variant = info.cells[cell];
  if (variant < 0) {
    fail("the kernel '", info.name, "' has no variant for ", describe_cell(info, cell));
  }
  return {variant, &get_variant(arch, kernel, variant)};
}

}  // namespace tbe_aot
