// The launches that check offsets and indices, for plans that begin with them.
#pragma once

#include "core/launch_chain.h"
#include "core/planner.h"

namespace tbe_aot {

// Adds those that copy the offsets and repair the copy, the first of their plan, to `chain`; sets
// what the plan clears.
void add_offset_checks(Plan& plan, LaunchChain& chain, const CheckBoundsRequest& request);

// Adds those that copy the indices and replace what is out of bounds in the copy, behind the above.
// `why`: why those that look up do not check, where they could have; may be null.
void add_index_checks(LaunchChain& chain, const CheckBoundsRequest& request,
                      const char* why = nullptr);

// Where invalid indices are counted: where the caller asks for it, or in the report.
const void* invalid_count_of(const CheckBoundsRequest& request);

}  // namespace tbe_aot
