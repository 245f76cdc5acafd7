// The pooled lookup on the CPU.
#pragma once

#include <cstdint>

#include "core/layout.h"
#include "core/planner.h"

namespace tbe_aot::cpu {

// Computes what the kernels compute, from memory on the host; `output_numel` bounds the 1-D output
// of a variable batch. Unlike the kernels it looks before it reads: an offset or an index out of
// bounds throws Error, which begins with `op`, the operator's name. There must be at least one bag.
void forward(const char* op, const ForwardRequest& request, const Layout& layout,
             int64_t output_numel);

}  // namespace tbe_aot::cpu
