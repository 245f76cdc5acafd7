#pragma once

#include <cmath>

#include "cpu/optimizers/row_update.h"

namespace tbe_aot::cpu {

// h = g + l2 * w; m1 = beta1 * m1 + (1 - beta1) * h; m2 = beta2 * m2 + (1 - beta2) * h^2
// w = (1 - lr * decoupled) * w - lr * (m1 / (1 - beta1^t)) / (sqrt(m2 / (1 - beta2^t)) + eps)
inline void adam(const OptimizerArguments& in, const RowUpdate& row) {
  const double t = static_cast<double>(in.step);
  const auto correction1 = static_cast<float>(1.0 - std::pow(in.beta1, t));
  const auto correction2 = static_cast<float>(1.0 - std::pow(in.beta2, t));
  const auto keep1 = static_cast<float>(in.beta1);
  const auto keep2 = static_cast<float>(in.beta2);
  const auto take1 = static_cast<float>(1.0 - in.beta1);
  const auto take2 = static_cast<float>(1.0 - in.beta2);
  const float kept = 1.0f - in.learning_rate * in.decoupled_decay;
  float* m1 = in.momentum1 + row.element;
  float* m2 = in.momentum2 + row.element;
  for (int64_t c = 0; c < row.dim; ++c) {
    const float w = row.weights[c];
    const float h = with_l2_decay(row.gradient[c], w, in.l2_decay);
    m1[c] = keep1 * m1[c] + take1 * h;
    m2[c] = keep2 * m2[c] + take2 * (h * h);
    const float mean = m1[c] / correction1;
    const float deviation = std::sqrt(m2[c] / correction2);
    row.weights[c] = kept * w - in.learning_rate * mean / (deviation + in.eps);
  }
}

}  // namespace tbe_aot::cpu
