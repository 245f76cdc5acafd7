// The operators of the backward as the dispatcher calls them.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>

namespace tbe_aot {

// Each serves CPU and CUDA: the device of the tensors decides.

// tbe_aot::transpose_indices
void transpose_indices(StableIValue* stack, uint64_t argument_count, uint64_t result_count);

// tbe_aot::backward_update
void backward_update(StableIValue* stack, uint64_t argument_count, uint64_t result_count);

// tbe_aot::per_sample_weights_gradient
void per_sample_weights_gradient(StableIValue* stack, uint64_t argument_count,
                                 uint64_t result_count);

}  // namespace tbe_aot
