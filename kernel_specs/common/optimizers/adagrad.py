"""Adagrad: one number of state per weight."""

import triton
import triton.language as tl

from common.optimizers.rowwise import with_l2_decay


@triton.jit
def adagrad(weights, gradient, step, position, mask, ONE_ROW: tl.constexpr = False):
    """Updated rows [rows, columns] fp32; momentum1 changes in place, at the ``position`` of each weight.

    h = g + l2 * w;  m += h^2;  w = (1 - lr * decoupled) * w - lr * h / (sqrt(m) + eps)
    """
    h = with_l2_decay(gradient, weights, step.l2_decay)
    momentum = tl.load(step.momentum1 + position, mask=mask, other=0.0) + h * h
    if ONE_ROW:  # See `updated_rows`.
        tl.debug_barrier()
    tl.store(step.momentum1 + position, momentum, mask=mask)
    kept = 1.0 - step.learning_rate * step.decoupled_decay
    return kept * weights - step.learning_rate * h / (tl.sqrt_rn(momentum) + step.eps)
