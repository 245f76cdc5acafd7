// What the formula of an optimizer works on: one row that was looked up, and the sum of its
// gradients.
#pragma once

#include <cstdint>

namespace tbe_aot::cpu {

// Numbers of the optimizer, the same for every row.
struct OptimizerArguments {
  float learning_rate = 0;
  float eps = 0;
  // In double: 1 - beta2 has few digits.
  double beta1 = 0;
  double beta2 = 0;
  float l2_decay = 0;         // weight_decay in mode "l2", else 0.
  float decoupled_decay = 0;  // weight_decay in mode "decoupled", else 0.
  int64_t step = 0;           // Number of this update, from 1 on.
  float* momentum1 = nullptr;
  float* momentum2 = nullptr;
};

struct RowUpdate {
  int64_t row;            // Global row: where its state is, for a number per row.
  int64_t element;        // First element in the weights: where its state is, for one per weight.
  int64_t dim;            // Elements of weights and gradient.
  const float* gradient;  // Sum over the lookups of the row.
  float* weights;         // Widened; rounded to the table's dtype after the formula.
};

// g + l2 * w, and g without a decay, whatever the weight: 0 times an infinite one is NaN.
inline float with_l2_decay(float gradient, float weight, float l2_decay) {
  return l2_decay != 0 ? gradient + l2_decay * weight : gradient;
}

using Formula = void (*)(const OptimizerArguments& in, const RowUpdate& row);

}  // namespace tbe_aot::cpu
