// The bounds check on the CPU.
#pragma once

#include <cstdint>

#include "core/planner.h"

namespace tbe_aot::cpu {

// Writes checked copies of indices and offsets, and the report, as the kernels do. Errors begin
// with `op`, the operator's name.
void check_bounds(const char* op, const CheckBoundsRequest& request);

// Adds what a check without invalid_count has counted in its report to `counter`, int64 [1].
void add_invalid_indices(const CheckBoundsRequest& checked, void* counter);

}  // namespace tbe_aot::cpu
