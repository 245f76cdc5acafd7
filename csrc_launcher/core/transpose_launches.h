// The launches that transpose the lookups, for plans that begin with them.
#pragma once

#include "core/launch_chain.h"
#include "core/layout.h"
#include "core/planner.h"

namespace tbe_aot {

// Adds them to `chain`, the first of its plan; sets what the plan clears. There are lookups and
// bags.
void add_transpose(Plan& plan, LaunchChain& chain, const TransposeRequest& request,
                   const Layout& layout);

// Throws Error unless a kernel cuts long runs into the chunks that the transposed format has.
void check_chunk(const Choice& choice, int32_t chunk);

// Throws Error unless positions and counts of so many lookups fit 32 bits.
void check_lookups(int64_t lookups);

}  // namespace tbe_aot
