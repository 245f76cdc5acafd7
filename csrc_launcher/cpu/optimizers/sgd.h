#pragma once

#include "cpu/optimizers/row_update.h"

namespace tbe_aot::cpu {

// w = (1 - lr * decoupled) * w - lr * (g + l2 * w)
inline void sgd(const OptimizerArguments& in, const RowUpdate& row) {
  const float kept = 1.0f - in.learning_rate * in.decoupled_decay;
  for (int64_t c = 0; c < row.dim; ++c) {
    const float w = row.weights[c];
    row.weights[c] = kept * w - in.learning_rate * with_l2_decay(row.gradient[c], w, in.l2_decay);
  }
}

}  // namespace tbe_aot::cpu
