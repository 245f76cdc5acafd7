#include "core/kernel_cache.h"

#include <map>
#include <mutex>
#include <utility>

#include "core/context.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/kernel_lookup.h"
#include "core/pack.h"

namespace tbe_aot {
namespace {

// A kernel may use this much dynamic shared memory without asking.
constexpr int32_t kDefaultSharedBytes = 48 * 1024;

[[noreturn]] void fail_not_built(const KernelInfo& kernel, const ArchInfo& arch, int32_t arch_index,
                                 const VariantInfo& variant) {
  int32_t built = 0;
  for (int32_t i = 0; i < kernel.variant_count; ++i) {
    built += kernel.variants[arch_index][i].blob >= 0 ? 1 : 0;
  }
  fail("this build of tbe-aot has no cubin of ", variant.name, " for ", arch.name,
       ": its profile '", kBuild.profile, "' holds ", built, " of the ", kernel.variant_count,
       " variants of '", kernel.name, "'. Install a build of the profile 'full'");
}

// The libraries made from cubins so far, by (arch, blob). Guarded by the mutex of get_function.
CUlibrary load_library(const Driver& driver, int32_t arch, const VariantInfo& variant) {
  // Never unloaded: operators may run while the process ends.
  static auto& libraries = *new std::map<std::pair<int32_t, int32_t>, CUlibrary>;
  const auto found = libraries.find({arch, variant.blob});
  if (found != libraries.end()) return found->second;
  const void* cubin = arch_pack(arch).checked_blob(variant.blob);
  CUlibrary library = nullptr;
  driver.check(driver.cuLibraryLoadData(&library, cubin, nullptr, nullptr, 0, nullptr, nullptr, 0),
               "cuLibraryLoadData", "loading the cubin of ", variant.name, " for ",
               kBuild.archs[arch].name);
  libraries.emplace(std::make_pair(arch, variant.blob), library);
  return library;
}

CUfunction load_function(const Driver& driver, const Device& device, int32_t arch,
                         const VariantInfo& variant) {
  const RelaxedCaptureGuard relaxed(driver);
  const CUlibrary library = load_library(driver, arch, variant);
  CUkernel kernel = nullptr;
  driver.check(driver.cuLibraryGetKernel(&kernel, library, variant.entry), "cuLibraryGetKernel",
               "looking for the entry point ", variant.entry, " of ", variant.name);
  if (variant.shared_bytes > kDefaultSharedBytes) {
    driver.check(driver.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                             variant.shared_bytes, kernel, device.handle()),
                 "cuKernelSetAttribute", "asking for ", variant.shared_bytes,
                 " bytes of shared memory for ", variant.name, " on ", device);
  }
  CUfunction function = nullptr;
  driver.check(driver.cuKernelGetFunction(&function, kernel), "cuKernelGetFunction", "loading ",
               variant.name, " on ", device);
  return function;
}

}  // namespace

CUfunction get_function(Device& device, int32_t arch, int32_t kernel, int32_t variant) {
  std::atomic<CUfunction>& slot = device.function(variant_slot(kernel, variant));
  CUfunction function = slot.load(std::memory_order_acquire);
  if (function != nullptr) return function;

  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  function = slot.load(std::memory_order_relaxed);
  if (function != nullptr) return function;
  const VariantInfo& info = get_variant(arch, kernel, variant);
  if (info.blob < 0) fail_not_built(kBuild.kernels[kernel], kBuild.archs[arch], arch, info);
  function = load_function(Driver::get(), device, arch, info);
  slot.store(function, std::memory_order_release);
  return function;
}

}  // namespace tbe_aot
