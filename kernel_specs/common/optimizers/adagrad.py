"""Adagrad: one number of state per weight."""

import triton
import triton.language as tl


@triton.jit
def adagrad(
    weights,
    gradient,
    momentum1,
    position,
    mask,
    learning_rate,
    eps,
    l2_decay,
    decoupled_decay,
    ONE_ROW: tl.constexpr = False,
):
    """Updated rows [rows, columns] fp32; momentum1 changes in place, at the ``position`` of each weight.

    h = g + l2 * w;  m += h^2;  w = (1 - lr * decoupled) * w - lr * h / (sqrt(m) + eps)
    """
    h = gradient + l2_decay * weights
    momentum = tl.load(momentum1 + position, mask=mask, other=0.0) + h * h
    if ONE_ROW:  # See `updated_rows`.
        tl.debug_barrier()
    tl.store(momentum1 + position, momentum, mask=mask)
    kept = 1.0 - learning_rate * decoupled_decay
    return kept * weights - learning_rate * h / (tl.sqrt_rn(momentum) + eps)
