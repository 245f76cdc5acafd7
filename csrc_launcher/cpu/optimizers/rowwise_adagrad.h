#pragma once

#include <cmath>

#include "cpu/optimizers/row_update.h"

namespace tbe_aot::cpu {

// m[row] += mean over the columns of (g + l2 * w)^2; mult = lr / (sqrt(m[row]) + eps)
// w = (1 - mult * l2 - lr * decoupled) * w - mult * g
inline void rowwise_adagrad(const OptimizerArguments& in, const RowUpdate& row) {
  double squares = 0;
  for (int64_t c = 0; c < row.dim; ++c) {
    const float g = with_l2_decay(row.gradient[c], row.weights[c], in.l2_decay);
    squares += static_cast<double>(g) * g;
  }
  float& m = in.momentum1[row.row];
  m += static_cast<float>(squares / static_cast<double>(row.dim));
  const float mult = in.learning_rate / (std::sqrt(m) + in.eps);
  const float kept = 1.0f - mult * in.l2_decay - in.learning_rate * in.decoupled_decay;
  for (int64_t c = 0; c < row.dim; ++c) {
    row.weights[c] = kept * row.weights[c] - mult * row.gradient[c];
  }
}

}  // namespace tbe_aot::cpu
