// The bounds check on the CPU.
#pragma once

#include <cstdint>

#include "core/planner.h"

namespace tbe_aot::cpu {

// Writes checked copies of indices and offsets, and the report, as the kernels do.
void check_bounds(const CheckBoundsRequest& request);

}  // namespace tbe_aot::cpu
