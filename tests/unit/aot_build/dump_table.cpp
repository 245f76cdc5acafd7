// Prints the generated tables as JSON, for a test to compare with the manifest.
#include <cstdio>
#include <string>

#include "kernel_table.h"

namespace {

using tbe_aot::ArchInfo;
using tbe_aot::AxisInfo;
using tbe_aot::kBuild;
using tbe_aot::KernelInfo;
using tbe_aot::ParamInfo;
using tbe_aot::VariantInfo;

std::string quote(const char* text) { return "\"" + std::string(text) + "\""; }

template <typename Item>
std::string list(int32_t count, Item item) {
  std::string text = "[";
  for (int32_t i = 0; i < count; ++i) text += (i > 0 ? "," : "") + item(i);
  return text + "]";
}

std::string variant(const KernelInfo& kernel, const VariantInfo& info) {
  return "{\"name\":" + quote(info.name) + ",\"entry\":" + quote(info.entry) +
         ",\"blob\":" + std::to_string(info.blob) +
         ",\"num_warps\":" + std::to_string(info.num_warps) +
         ",\"shared_bytes\":" + std::to_string(info.shared_bytes) + ",\"constants\":" +
         list(kernel.constant_count, [&](int i) { return std::to_string(info.constants[i]); }) +
         "}";
}

std::string variants(const KernelInfo& kernel, int32_t arch) {
  const VariantInfo* infos = kernel.variants[arch];
  if (infos == nullptr) return "null";
  return list(kernel.variant_count, [&](int i) { return variant(kernel, infos[i]); });
}

std::string axis(const AxisInfo& info) {
  return "{\"name\":" + quote(info.name) +
         ",\"labels\":" + list(info.size, [&](int i) { return quote(info.labels[i]); }) + "}";
}

std::string param(const ParamInfo& info) {
  return "{\"name\":" + quote(info.name) + ",\"type\":" + quote(info.type) +
         ",\"offset\":" + std::to_string(info.offset) + ",\"size\":" + std::to_string(info.size) +
         "}";
}

std::string kernel(const KernelInfo& info) {
  std::string by_arch;
  for (int32_t arch = 0; arch < kBuild.arch_count; ++arch) {
    by_arch += (arch > 0 ? "," : "") + quote(kBuild.archs[arch].name) + ":" + variants(info, arch);
  }
  return "{\"name\":" + quote(info.name) +
         ",\"axes\":" + list(info.axis_count, [&](int i) { return axis(info.axes[i]); }) +
         ",\"params\":" + list(info.param_count, [&](int i) { return param(info.params[i]); }) +
         ",\"args_size\":" + std::to_string(info.args_size) + ",\"constants\":" +
         list(info.constant_count, [&](int i) { return quote(info.constant_names[i]); }) +
         ",\"cells\":" +
         list(info.cell_count, [&](int i) { return std::to_string(info.cells[i]); }) +
         ",\"variants\":{" + by_arch + "}}";
}

std::string arch(const ArchInfo& info) {
  std::string hash;
  for (const uint8_t byte : info.index_sha256) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    hash += digits;
  }
  return quote(info.name) + ":{\"pack\":" + quote(info.pack_file) + ",\"index_sha256\":\"" + hash +
         "\"}";
}

}  // namespace

int main() {
  std::string archs;
  for (int32_t i = 0; i < kBuild.arch_count; ++i) {
    archs += (i > 0 ? "," : "") + arch(kBuild.archs[i]);
  }
  const std::string kernels =
      list(kBuild.kernel_count, [](int i) { return kernel(kBuild.kernels[i]); });
  std::printf("{\"profile\":%s,\"build_id\":%s,\"archs\":{%s},\"kernels\":%s}\n",
              quote(kBuild.profile).c_str(), quote(kBuild.build_id).c_str(), archs.c_str(),
              kernels.c_str());
}
