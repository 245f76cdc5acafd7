// Finding a variant in the generated tables.
#pragma once

#include <cstdint>

#include "core/kernel_table.h"

namespace tbe_aot {

// The tables of a variant on an arch. Throws Error when no such arch, kernel or variant exists.
const VariantInfo& get_variant(int32_t arch, int32_t kernel, int32_t variant);

// The variant that serves a cell (a combination of axis values) of a kernel on an arch.
struct Choice {
  int32_t variant;
  const VariantInfo* info;
};

// Whether the specs have a variant for a cell.
bool has_variant(int32_t kernel, int32_t cell);

// Throws Error when the arch lacks the kernel, or the specs exclude the cell.
Choice choose_variant(int32_t arch, int32_t kernel, int32_t cell);

}  // namespace tbe_aot
