#include "core/launcher.h"

#include "core/context.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/kernel_cache.h"
#include "core/kernel_lookup.h"
#include "core/kernel_table.h"

namespace tbe_aot {
namespace {

constexpr uint32_t kWarpSize = 32;
constexpr int32_t kMaxParams = 64;

CUdeviceptr device_pointer(const void* address) {
  return static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(address));
}

void launch(const Driver& driver, Device& device, int32_t arch, const Launch& launch,
            CUstream stream) {
  const KernelInfo& kernel = kBuild.kernels[launch.kernel];
  const VariantInfo& variant = kernel.variants[arch][launch.variant];
  const CUfunction function = get_function(device, arch, launch.kernel, launch.variant);
  if (launch.args_size != kernel.args_size || kernel.param_count > kMaxParams) {
    fail("the arguments of ", variant.name, " have ", launch.args_size, " bytes, expected ",
         kernel.args_size, " in at most ", kMaxParams, " parameters");
  }
  void* params[kMaxParams];
  auto* args = const_cast<unsigned char*>(launch.args);  // The driver only reads them.
  for (int32_t i = 0; i < kernel.param_count; ++i) params[i] = args + kernel.params[i].offset;
  // Programmatic dependent launch: the kernel itself says when the next one may start.
  CUlaunchAttribute overlap{};
  overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  overlap.value.programmatic_stream_serialization_allowed = 1;
  CUlaunchConfig config{};
  config.grid_x = launch.grid[0];
  config.grid_y = launch.grid[1];
  config.grid_z = launch.grid[2];
  config.block_x = kWarpSize * static_cast<uint32_t>(variant.num_warps);
  config.block_y = 1;
  config.block_z = 1;
  config.shared_bytes = static_cast<uint32_t>(variant.shared_bytes);
  config.stream = stream;
  config.attributes = &overlap;
  config.attribute_count = launch.overlaps_previous ? 1 : 0;
  driver.check(driver.cuLaunchKernelEx(&config, function, params, nullptr), "cuLaunchKernelEx",
               "launching ", variant.name, " on ", device, " with grid (", launch.grid[0], ", ",
               launch.grid[1], ", ", launch.grid[2], "), ", variant.num_warps, " warps and ",
               variant.shared_bytes, " bytes of shared memory");
}

}  // namespace

int32_t device_arch(int32_t device) { return get_device(device).arch(); }

int32_t device_multiprocessors(int32_t device) { return get_device(device).multiprocessors(); }

void run(const Plan& plan, int32_t device_ordinal, void* stream_handle) {
  Device& device = get_device(device_ordinal);
  if (device.arch() != plan.arch) {
    fail("the plan was made for ", kBuild.archs[plan.arch].name, ", ", device, " needs one for ",
         kBuild.archs[device.arch()].name);
  }
  const Driver& driver = Driver::get();
  const auto stream = static_cast<CUstream>(stream_handle);
  const ContextGuard context(driver, device.context());
  for (size_t i = 0; i < plan.launches.size(); ++i) {
    get_function(device, plan.arch, plan.launches[i].kernel, plan.launches[i].variant);
  }
  if (plan.clear.bytes > 0) {
    driver.check(driver.cuMemsetD32Async(device_pointer(plan.clear.address), 0,
                                         plan.clear.bytes / sizeof(uint32_t), stream),
                 "cuMemsetD32Async", "clearing ", plan.clear.bytes, " bytes on ", device);
  }
  for (size_t i = 0; i < plan.launches.size(); ++i) {
    launch(driver, device, plan.arch, plan.launches[i], stream);
  }
}

void preload(int32_t device_ordinal, int32_t kernel, int32_t variant) {
  Device& device = get_device(device_ordinal);
  const int32_t arch = device.arch();
  get_variant(arch, kernel, variant);  // Checks the numbers before they index anything.
  const ContextGuard context(Driver::get(), device.context());
  get_function(device, arch, kernel, variant);
}

bool is_capturing(int32_t device_ordinal, void* stream) {
  Device& device = get_device(device_ordinal);
  const Driver& driver = Driver::get();
  const ContextGuard context(driver, device.context());
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  driver.check(driver.cuStreamIsCapturing(static_cast<CUstream>(stream), &status),
               "cuStreamIsCapturing", "asking whether a stream of ", device, " is being captured");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void copy_to_host(void* destination, const void* source, size_t bytes, int32_t device_ordinal,
                  void* stream_handle) {
  Device& device = get_device(device_ordinal);
  const Driver& driver = Driver::get();
  const auto stream = static_cast<CUstream>(stream_handle);
  const ContextGuard context(driver, device.context());
  driver.check(driver.cuMemcpyDtoHAsync(destination, device_pointer(source), bytes, stream),
               "cuMemcpyDtoHAsync", "copying ", bytes, " bytes from ", device);
  driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize",
               "waiting for a copy from ", device);
}

std::vector<LoadedVariant> loaded_variants() {
  std::vector<LoadedVariant> loaded;
  for (Device* device : known_devices()) {
    for (int32_t kernel = 0; kernel < kBuild.kernel_count; ++kernel) {
      for (int32_t variant = 0; variant < kBuild.kernels[kernel].variant_count; ++variant) {
        if (device->function(variant_slot(kernel, variant)).load() != nullptr) {
          loaded.push_back({device->ordinal(), device->arch(), kernel, variant});
        }
      }
    }
  }
  return loaded;
}

}  // namespace tbe_aot
