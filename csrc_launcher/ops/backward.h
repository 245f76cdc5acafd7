// The operators of the backward as the dispatcher calls them.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>

namespace tbe_aot {

// tbe_aot::backward_update, on the CPU.
void backward_update(StableIValue* stack, uint64_t argument_count, uint64_t result_count);

// tbe_aot::per_sample_weights_gradient, on the CPU.
void per_sample_weights_gradient(StableIValue* stack, uint64_t argument_count,
                                 uint64_t result_count);

}  // namespace tbe_aot
