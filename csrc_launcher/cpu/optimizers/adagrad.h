#pragma once

#include <cmath>

#include "cpu/optimizers/row_update.h"

namespace tbe_aot::cpu {

// h = g + l2 * w; m += h^2; w = (1 - lr * decoupled) * w - lr * h / (sqrt(m) + eps)
inline void adagrad(const OptimizerArguments& in, const RowUpdate& row) {
  const float kept = 1.0f - in.learning_rate * in.decoupled_decay;
  float* m = in.momentum1 + row.element;
  for (int64_t c = 0; c < row.dim; ++c) {
    const float w = row.weights[c];
    const float h = with_l2_decay(row.gradient[c], w, in.l2_decay);
    m[c] += h * h;
    row.weights[c] = kept * w - in.learning_rate * h / (std::sqrt(m[c]) + in.eps);
  }
}

}  // namespace tbe_aot::cpu
