// tbe_aot::check_bounds as the dispatcher calls it.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>

namespace tbe_aot {

// Serves CPU and CUDA: the device of the features tensor decides.
void check_bounds(StableIValue* stack, uint64_t argument_count, uint64_t result_count);

}  // namespace tbe_aot
