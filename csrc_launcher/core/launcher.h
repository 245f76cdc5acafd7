// The driver's side of an operator, in terms of torch's device numbers and stream handles.
// Every function throws Error with what was asked, what exists and what to do. All are safe to call
// from several threads. None synchronises, except copy_to_host. The current device is left as it
// was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/plan.h"

namespace tbe_aot {

// The arch (index in kBuild.archs) whose cubins run on CUDA device `device`.
int32_t device_arch(int32_t device);

// The multiprocessors of CUDA device `device`.
int32_t device_multiprocessors(int32_t device);

// Loads what `plan` needs and is not loaded yet, then clears and launches on `stream` (a CUstream).
// Nothing reaches the stream unless everything could be loaded.
void run(const Plan& plan, int32_t device, void* stream);

// Loads one variant on `device`, so that its first launch (in a graph capture, say) loads nothing.
void preload(int32_t device, int32_t kernel, int32_t variant);

// Whether `stream` is being captured into a CUDA graph.
bool is_capturing(int32_t device, void* stream);

// Copies device memory to the host behind the work on `stream` and waits for it.
void copy_to_host(void* destination, const void* source, size_t bytes, int32_t device,
                  void* stream);

// A variant whose function exists on a device.
struct LoadedVariant {
  int32_t device;
  int32_t arch;
  int32_t kernel;
  int32_t variant;
};
std::vector<LoadedVariant> loaded_variants();

}  // namespace tbe_aot
