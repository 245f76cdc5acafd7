// tbe_aot::forward and tbe_aot::forward_checked as the dispatcher calls them.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>

namespace tbe_aot {

// Both serve CPU and CUDA: the device of the weights decides.
void forward(StableIValue* stack, uint64_t argument_count, uint64_t result_count);
void forward_checked(StableIValue* stack, uint64_t argument_count, uint64_t result_count);

}  // namespace tbe_aot
