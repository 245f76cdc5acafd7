// CUDA devices as the launcher sees them: which arch serves them, their primary context (the one
// that torch uses), and the functions loaded on them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include "core/cuda_abi.h"

namespace tbe_aot {

class Device {
 public:
  // Throws Error when there is no such device or the driver refuses.
  explicit Device(int32_t ordinal);

  int32_t ordinal() const { return ordinal_; }
  CUdevice handle() const { return handle_; }

  // Index in kBuild.archs of the arch whose cubins run here; throws Error when there is none.
  int32_t arch() const;

  int32_t multiprocessors() const { return multiprocessors_; }

  // The primary context, retained at the first call and for the life of the process: merely asking
  // for a device's arch must not create a context on it.
  CUcontext context();

  // Where the function of a variant is kept; null until it is loaded. `slot` is from
  // variant_slot().
  std::atomic<CUfunction>& function(int32_t slot) { return functions_[slot]; }

  // "device 0 'NVIDIA H200'"; composed only where an error needs it.
  friend std::ostream& operator<<(std::ostream& out, const Device& device);

 private:
  int32_t ordinal_;
  CUdevice handle_ = 0;
  std::string name_;
  int32_t major_ = 0;
  int32_t minor_ = 0;
  int32_t multiprocessors_ = 0;
  int32_t arch_ = -1;
  std::mutex mutex_;
  std::atomic<CUcontext> context_{nullptr};
  std::unique_ptr<std::atomic<CUfunction>[]> functions_;
};

// The device that torch calls `ordinal`; after the first call without a lock.
Device& get_device(int32_t ordinal);

// The devices that get_device() has returned so far.
std::vector<Device*> known_devices();

// Numbers all variants of all kernels: the slot of (kernel, variant), and how many there are.
int32_t variant_slot(int32_t kernel, int32_t variant);
int32_t variant_slot_count();

}  // namespace tbe_aot
