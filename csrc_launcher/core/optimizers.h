// The optimizers by number and by name.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/optimizer_traits.h"
#include "optimizer_table.h"

namespace tbe_aot {

constexpr const OptimizerTraits& traits_of(Optimizer optimizer) {
  return kOptimizers[static_cast<size_t>(optimizer)];
}

// Throws Error when there is none of that name.
inline Optimizer find_optimizer(std::string_view name) {
  for (size_t i = 0; i < kOptimizers.size(); ++i) {
    if (name == kOptimizers[i].name) return static_cast<Optimizer>(i);
  }
  std::string known;
  for (const OptimizerTraits& traits : kOptimizers) {
    known += (known.empty() ? "" : ", ") + std::string(traits.name);
  }
  fail("no optimizer '", name, "'; allowed are ", known);
}

}  // namespace tbe_aot
