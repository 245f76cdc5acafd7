// tbe_aot::forward as the dispatcher calls it.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>

namespace tbe_aot {

// Serves CPU and CUDA: the device of the weights decides.
void forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count);

}  // namespace tbe_aot
