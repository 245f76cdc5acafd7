"""SGD, and exact row-wise Adagrad: one number of state per row."""

import triton
import triton.language as tl


@triton.jit
def load_rowwise_state(momentum1, row, live, adagrad):
    """[rows] fp32: the state of row-wise Adagrad; 0 for SGD, which has none and reads none."""
    return tl.load(momentum1 + row, mask=with_state(live, adagrad), other=0.0)


@triton.jit
def with_state(live, adagrad):
    """[rows]: those that have a state."""
    return live & ((tl.zeros(live.shape, tl.int32) + adagrad) != 0)


@triton.jit
def rowwise(
    weights,
    gradient,
    momentum,
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
    """Updated rows [rows, columns] fp32; ``momentum`` becomes momentum1[row] in place.

    SGD:     mult = lr
    Adagrad: m += mean over the dim of (g + l2 * w)^2;  mult = lr / (sqrt(m) + eps)
    both:    w = (1 - mult * l2 - lr * decoupled) * w - mult * g

    Which of the two is a run-time choice without a branch: loads do not move above a branch. SGD has no state and
    touches none.
    """
    stateful = with_state(live, adagrad)
    statistic = gradient + l2_decay * weights
    # fma with 0 is a product that stays one: joined with the sum over lanes, as ptxas would where a lane has one column,
    # it makes each lane of a row round its own product last, and the lanes do not agree on the sum.
    square = tl.fma(statistic, statistic, 0.0)
    momentum += tl.sum(square, axis=1) / dim.to(tl.float32)
    tl.store(momentum1 + row, momentum, mask=stateful)
    mult = tl.where(stateful, learning_rate / (tl.sqrt_rn(momentum) + eps), learning_rate)
    kept = 1.0 - mult * l2_decay - learning_rate * decoupled_decay
    return kept[:, None] * weights - mult[:, None] * gradient
