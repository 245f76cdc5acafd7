// Kernels, loaded when they are first needed.
#pragma once

#include "core/cuda_abi.h"
#include "core/device.h"

namespace tbe_aot {

// The function of a variant on a device, loaded at the first call: each cubin once per process,
// each function once per device. The device's primary context must be current. Throws Error when
// this build lacks the variant, its cubin was changed, or the driver refuses; the next call tries
// again.
CUfunction get_function(Device& device, int32_t arch, int32_t kernel, int32_t variant);

}  // namespace tbe_aot
