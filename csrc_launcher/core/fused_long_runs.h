// The launch that sums the chunks of long runs and updates their rows: when it runs rather than
// two.
#pragma once

#include "core/kernel_lookup.h"
#include "core/layout.h"
#include "core/planner.h"

namespace tbe_aot {

// Why the long runs of a group take two launches; null when they take one. `aligned`: whether the
// group's launches are. Looks at sizes, dtypes and what was asked for; bits are the same.
const char* why_two_launches(const BackwardUpdateRequest& request, const Layout& layout,
                             const FeatureGroup& group, bool aligned);

// The variant for a group that nothing speaks against.
Choice choose_fused_long_runs(const BackwardUpdateRequest& request, const FeatureGroup& group);

}  // namespace tbe_aot
