// The backward of the lookup on the CPU: who used which row, the update of the tables, and the
// gradient of per-sample weights. Each computes what the kernels compute, from memory on the host,
// but looks before it reads: an offset or an index out of bounds throws Error.
#pragma once

#include <cstdint>

#include "core/layout.h"
#include "core/planner.h"

namespace tbe_aot::cpu {

// Writes `request.transposed`; needs no scratch.
void transpose_indices(const TransposeRequest& request, const Layout& layout);

// One step of the optimizer for every row that was looked up. Everything is checked before anything
// is changed. Without `request.transposed`, `lookups` are transposed here; else they say only what
// the metadata is, and `transposed` is checked. The gradient is contiguous and of any dtype;
// neither partials nor the device's numbers are looked at.
void backward_update(const BackwardUpdateRequest& request, const TransposeRequest& lookups,
                     const Layout& layout);

// result[i] = dot(gradient of the lookup's bag, the row it hits), divided by L for MEAN; 0 for a
// pruned row. The gradient is contiguous and of any dtype; it has `gradient_numel` elements.
void per_sample_weights_gradient(const SampleWeightsGradientRequest& request, const Layout& layout,
                                 int64_t gradient_numel);

}  // namespace tbe_aot::cpu
