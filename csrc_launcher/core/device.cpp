#include "core/device.h"

#include "core/driver.h"
#include "core/error.h"
#include "core/kernel_table.h"

namespace tbe_aot {
namespace {

int32_t device_count(const Driver& driver) {
  int count = 0;
  driver.check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount", "counting CUDA devices");
  return count;
}

// "sm90 (compute capability 9.0), sm100 (compute capability 10.0)"
std::string describe_archs() {
  std::string text;
  for (int32_t i = 0; i < kBuild.arch_count; ++i) {
    const ArchInfo& arch = kBuild.archs[i];
    text += join(i == 0 ? "" : ", ", arch.name, " (compute capability ", arch.major, ".",
                 arch.minor, ")");
  }
  return text;
}

// Slot of each kernel's first variant, and the number of slots at the end.
const std::vector<int32_t>& first_slots() {
  static const std::vector<int32_t> slots = [] {
    std::vector<int32_t> result(1, 0);
    for (int32_t i = 0; i < kBuild.kernel_count; ++i) {
      result.push_back(result.back() + kBuild.kernels[i].variant_count);
    }
    return result;
  }();
  return slots;
}

struct DeviceTable {
  explicit DeviceTable(int32_t count) : devices(count) {}

  std::mutex mutex;  // Held while a device is added.
  std::vector<std::atomic<Device*>> devices;
};

DeviceTable& device_table() {
  // Never freed: operators may run while the process ends.
  static DeviceTable& table = *new DeviceTable(device_count(Driver::get()));
  return table;
}

}  // namespace

Device::Device(int32_t ordinal) : ordinal_(ordinal) {
  const Driver& driver = Driver::get();
  driver.check(driver.cuDeviceGet(&handle_, ordinal), "cuDeviceGet", "looking for CUDA device ",
               ordinal);
  char name[256] = "";
  driver.check(driver.cuDeviceGetName(name, sizeof(name), handle_), "cuDeviceGetName",
               "asking for the name of CUDA device ", ordinal);
  name_ = name;
  driver.check(
      driver.cuDeviceGetAttribute(&major_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle_),
      "cuDeviceGetAttribute", "asking for the compute capability of ", *this);
  driver.check(
      driver.cuDeviceGetAttribute(&minor_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle_),
      "cuDeviceGetAttribute", "asking for the compute capability of ", *this);
  driver.check(driver.cuDeviceGetAttribute(&multiprocessors_,
                                           CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle_),
               "cuDeviceGetAttribute", "asking for the number of multiprocessors of ", *this);
  // Cubins are compiled for arch-specific targets (sm_90a), which run on that very capability only.
  for (int32_t i = 0; i < kBuild.arch_count; ++i) {
    if (kBuild.archs[i].major == major_ && kBuild.archs[i].minor == minor_) arch_ = i;
  }
  functions_ = std::make_unique<std::atomic<CUfunction>[]>(variant_slot_count());
}

int32_t Device::arch() const {
  if (arch_ < 0) {
    fail("no kernel for ", *this, ": it has compute capability ", major_, ".", minor_,
         ", this build of tbe-aot holds kernels for ", describe_archs(),
         ". Run on such a GPU, install a build that holds this arch, or keep the tensors on the "
         "CPU");
  }
  return arch_;
}

CUcontext Device::context() {
  CUcontext context = context_.load(std::memory_order_acquire);
  if (context != nullptr) return context;
  const std::lock_guard<std::mutex> lock(mutex_);
  context = context_.load(std::memory_order_relaxed);
  if (context != nullptr) return context;
  const Driver& driver = Driver::get();
  driver.check(driver.cuDevicePrimaryCtxRetain(&context, handle_), "cuDevicePrimaryCtxRetain",
               "retaining the primary context of ", *this);
  context_.store(context, std::memory_order_release);
  return context;
}

std::ostream& operator<<(std::ostream& out, const Device& device) {
  return out << "device " << device.ordinal_ << " '" << device.name_ << "'";
}

Device& get_device(int32_t ordinal) {
  DeviceTable& table = device_table();
  const auto count = static_cast<int32_t>(table.devices.size());
  if (ordinal < 0 || ordinal >= count) {
    fail("there is no CUDA device ", ordinal, ": the driver shows ", count, " devices");
  }
  std::atomic<Device*>& slot = table.devices[ordinal];
  Device* device = slot.load(std::memory_order_acquire);
  if (device != nullptr) return *device;
  const std::lock_guard<std::mutex> lock(table.mutex);
  device = slot.load(std::memory_order_relaxed);
  if (device == nullptr) {
    device = new Device(ordinal);
    slot.store(device, std::memory_order_release);
  }
  return *device;
}

std::vector<Device*> known_devices() {
  std::vector<Device*> known;
  for (const std::atomic<Device*>& slot : device_table().devices) {
    if (Device* device = slot.load(std::memory_order_acquire)) known.push_back(device);
  }
  return known;
}

int32_t variant_slot(int32_t kernel, int32_t variant) { return first_slots()[kernel] + variant; }

int32_t variant_slot_count() { return first_slots().back(); }

}  // namespace tbe_aot
