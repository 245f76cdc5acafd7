"""SGD, and exact row-wise Adagrad: one number of state per row."""

import triton
import triton.language as tl


@triton.jit
def rowwise(
    weights,
    gradient,
    momentum1,
    row,
    live,
    dim,
    learning_rate,
    eps,
    l2_decay,
    decoupled_decay,
    adagrad,
):
    """Updated rows [rows, columns] fp32; momentum1[row] changes in place.

    SGD:     mult = lr
    Adagrad: m += mean over the dim of (g + l2 * w)^2;  mult = lr / (sqrt(m) + eps)
    both:    w = (1 - mult * l2 - lr * decoupled) * w - mult * g

    Which of the two is a run-time choice without a branch: loads do not move above a branch. SGD has no state and
    touches none.
    """
    with_state = live & ((tl.zeros(live.shape, tl.int32) + adagrad) != 0)
    statistic = gradient + l2_decay * weights
    momentum = tl.load(momentum1 + row, mask=with_state, other=0.0)
    momentum += tl.sum(statistic * statistic, axis=1) / dim.to(tl.float32)
    tl.store(momentum1 + row, momentum, mask=with_state)
    mult = tl.where(with_state, learning_rate / (tl.sqrt_rn(momentum) + eps), learning_rate)
    kept = 1.0 - mult * l2_decay - learning_rate * decoupled_decay
    return kept[:, None] * weights - mult[:, None] * gradient
