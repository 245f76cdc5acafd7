// The backward of the lookup on the CPU: the update of the tables, and the gradient of per-sample
// weights.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/layout.h"
#include "core/planner.h"
#include "cpu/lookups.h"
#include "cpu/optimizers/row_update.h"

namespace tbe_aot::cpu {

struct GradientRequest {
  LookupArguments lookups;
  Dtype gradient_dtype = Dtype::kFloat32;
  Dtype weight_dtype = Dtype::kFloat32;
  bool mean = false;
  const void* gradient = nullptr;  // [B, output_width]; VBE: 1-D. Contiguous.
  int64_t gradient_numel = 0;
};

struct UpdateRequest : GradientRequest {
  void* weights = nullptr;
  const float* per_sample_weights = nullptr;  // [N]; null: unweighted.
  float gradient_clip = 0;                    // 0: none.
  const float* gradient_scale = nullptr;      // [1]; null: 1.
  const float* found_inf = nullptr;           // [1]; null: 0.
  std::string_view optimizer;
  OptimizerArguments arguments;
  int64_t* step = nullptr;  // [1]; null: the optimizer counts none.
};

struct SampleWeightsRequest : GradientRequest {
  const void* weights = nullptr;
  float* result = nullptr;  // [N]
};

// One step of the optimizer for every row that was looked up. Everything is checked before anything
// is changed; throws Error when an offset or an index is out of bounds.
void backward_update(const UpdateRequest& request, const Layout& layout);

// result[i] = dot(gradient of the lookup's bag, the row it hits), divided by L for MEAN; 0 for a
// pruned row. Throws Error as backward_update() does.
void per_sample_weights_gradient(const SampleWeightsRequest& request, const Layout& layout);

}  // namespace tbe_aot::cpu
