// Lookups by blocks that go on with the work of blocks that have not started, on archs that can.
#pragma once

#include <cstdint>

#include "core/launch_chain.h"
#include "core/layout.h"
#include "core/planner.h"

namespace tbe_aot {

namespace generated {
struct ForwardArgs;
}

// Why a group of features is not looked up by that kernel; null if it is. `aligned`: whether rows
// and output are.
const char* why_not_work_stealing(const ForwardRequest& request, const FeatureGroup& group,
                                  bool aligned);

// Adds the launch of some features of such a group; `args` are those of the general kernel for
// them.
void add_work_stealing_launch(LaunchChain& chain, const ForwardRequest& request,
                              const FeatureGroup& group, int64_t feature_count,
                              const generated::ForwardArgs& args);

}  // namespace tbe_aot
