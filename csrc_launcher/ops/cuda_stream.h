// Torch's current CUDA stream, without linking anything of CUDA.
#pragma once

#include <cstdint>

namespace tbe_aot {

// The stream (a CUstream) that torch is using on `device` in this thread. Throws Error where torch
// has no CUDA.
void* current_cuda_stream(int32_t device);

}  // namespace tbe_aot
