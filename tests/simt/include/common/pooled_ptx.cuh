// Stands in for kernel_specs/common/pooled_ptx.cuh on the host.
#pragma once

#include "common/cuda_types.cuh"

struct alignas(16) Vector {
  uint32 words[4];
};

inline float divide(float dividend, float divisor) { return dividend / divisor; }

template <typename Word>
void store_streaming(Word* address, const Word& value) {
  *address = value;
}
