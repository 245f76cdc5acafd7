// One small table by long bags: when its kernels run, and their launches.
#pragma once

#include "core/launch_chain.h"
#include "core/layout.h"
#include "core/planner.h"

namespace tbe_aot {

// Why forward_small_table does not run for a call; null when it does. Looks at sizes, addresses and
// what was asked for, as every planning does; both kernels give the same results.
const char* why_not_small_table(const ForwardRequest& request, const Layout& layout);

// A table of a size that the kernels are made for.
bool is_small_table(const Layout& layout);

// Whether the answers of why_not_small_table and why_not_small_table_update are of interest.
bool tells_of_small_tables(SmallTables asked, const Layout& layout);

// Adds the launch of a call that nothing speaks against; it waits for what is in the chain.
void add_small_table_launch(LaunchChain& chain, const ForwardRequest& request,
                            const Layout& layout);

// The same for the update, whose kernels serve fewer rows and narrower ones.
const char* why_not_small_table_update(const BackwardUpdateRequest& request, const Layout& layout);

// Adds the launches of an update that nothing speaks against; what counts it has been added.
void add_small_table_update(LaunchChain& chain, const BackwardUpdateRequest& request,
                            const Layout& layout);

}  // namespace tbe_aot
