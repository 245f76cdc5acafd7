// Registers the operators with torch when the library is loaded.
#include <torch/csrc/stable/library.h>

#include "operator_rules.h"
#include "ops/backward.h"
#include "ops/check_bounds.h"
#include "ops/forward.h"

STABLE_TORCH_LIBRARY(tbe_aot, library) {
  library.def(tbe_aot::rules::kForwardSchema);
  library.def(tbe_aot::rules::kCheckBoundsSchema);
  library.def(tbe_aot::rules::kForwardCheckedSchema);
  library.def(tbe_aot::rules::kTransposeIndicesSchema);
  library.def(tbe_aot::rules::kBackwardUpdateSchema);
  library.def(tbe_aot::rules::kPerSampleWeightsGradientSchema);
}

STABLE_TORCH_LIBRARY_IMPL(tbe_aot, CPU, library) {
  library.impl("forward", &tbe_aot::forward);
  library.impl("check_bounds", &tbe_aot::check_bounds);
  library.impl("forward_checked", &tbe_aot::forward_checked);
  library.impl("transpose_indices", &tbe_aot::transpose_indices);
  library.impl("backward_update", &tbe_aot::backward_update);
  library.impl("per_sample_weights_gradient", &tbe_aot::per_sample_weights_gradient);
}

STABLE_TORCH_LIBRARY_IMPL(tbe_aot, CUDA, library) {
  library.impl("forward", &tbe_aot::forward);
  library.impl("check_bounds", &tbe_aot::check_bounds);
  library.impl("forward_checked", &tbe_aot::forward_checked);
  library.impl("transpose_indices", &tbe_aot::transpose_indices);
  library.impl("backward_update", &tbe_aot::backward_update);
  library.impl("per_sample_weights_gradient", &tbe_aot::per_sample_weights_gradient);
}
