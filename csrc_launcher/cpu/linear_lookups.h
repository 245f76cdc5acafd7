// The lookups of a call as a flat list.
#pragma once

#include <cstdint>
#include <vector>

#include "core/layout.h"
#include "cpu/lookups.h"

namespace tbe_aot::cpu {

// What a lookup does with the row that it hits.
struct Use {
  const int64_t* feature = nullptr;  // The feature's row of the features tensor.
  int64_t gradient = 0;              // First element of the gradient of the lookup's bag.
  float factor = 0;  // Of the row in the bag's result: per-sample weight, divided by L for MEAN.
};

// One entry per index.
struct LinearLookups {
  std::vector<int64_t> rows;  // Global row; -1: a pruned row, or an index that belongs to no bag.
  std::vector<Use> uses;

  // The first element, in the weights, of the row that a lookup hits.
  int64_t element(int64_t position) const {
    const int64_t* feature = uses[static_cast<size_t>(position)].feature;
    const int64_t row = rows[static_cast<size_t>(position)] - feature[kFirstGlobalRow];
    return feature[kWeightOffset] + row * feature[kRowPitch];
  }
};

// What becomes of an index that is out of bounds: an error, or row 0 (a pruned row if there is
// none), as the bounds check has it.
enum class InvalidIndex { kRefused, kRow0 };

// Checks every offset, index and position of the gradient, which has `gradient_numel` elements.
// Throws Error when one is out of bounds (an index only if `invalid` says so), when features that
// share rows disagree about them, when global rows do not rise from slot to slot, or when tables
// overlap in the weights. `sample_weights` may be null.
LinearLookups linearise(const char* op, const LookupArguments& in, const Layout& layout,
                        int64_t gradient_numel, const float* sample_weights, bool mean,
                        InvalidIndex invalid);

// Throws Error as linearise() does, as far as metadata goes.
void check_metadata(const char* op, const LookupArguments& in, const Layout& layout);

}  // namespace tbe_aot::cpu
