// The ways to update rows with long runs, by name.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/planner.h"

namespace tbe_aot {

// By the number of the way.
inline constexpr std::array<const char*, 3> kLongRunsNames{"auto", "fused", "two_launches"};

inline const char* long_runs_name(LongRuns way) { return kLongRunsNames[static_cast<size_t>(way)]; }

// Throws Error when there is none of that name.
inline LongRuns find_long_runs(std::string_view name) {
  for (size_t i = 0; i < kLongRunsNames.size(); ++i) {
    if (name == kLongRunsNames[i]) return static_cast<LongRuns>(i);
  }
  fail("no way '", name, "' to update long runs; allowed are auto, fused, two_launches");
}

}  // namespace tbe_aot
