"""SGD, and exact row-wise Adagrad: one number of state per row."""

import triton
import triton.language as tl

# Of a row of 2048 columns.
MOST_HALVINGS = tl.constexpr(11)


@triton.jit
def load_rowwise_state(momentum1, row, live, adagrad):
    """[rows] fp32: the state of row-wise Adagrad; 0 for SGD, which has none and reads none."""
    return tl.load(momentum1 + row, mask=with_state(live, adagrad), other=0.0)


@triton.jit
def with_state(live, adagrad):
    """[rows]: those that have a state."""
    return live & ((tl.zeros(live.shape, tl.int32) + adagrad) != 0)


@triton.jit
def sum_in_pairs(row):
    """[1]: the sum of a row [1, columns], the halves added, then the halves of that, and so on.

    `tl.sum` adds in an order that follows the block's layout, which the compiler chooses by what else is in the kernel.
    Of two numbers there is one sum.
    """
    left = tl.reshape(row, [row.shape[1]])
    for _ in tl.static_range(MOST_HALVINGS):
        if left.shape[0] > 1:
            left = tl.sum(tl.reshape(left, [2, left.shape[0] // 2]), axis=0)
    return left


@triton.jit
def with_l2_decay(gradient, weights, l2_decay):
    """g + l2 * w, and g without a decay, whatever the weights: 0 times an infinite one is NaN."""
    return tl.fma(l2_decay, tl.where(l2_decay != 0, weights, 0.0), gradient)


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
    ONE_ROW: tl.constexpr = False,
):
    """Updated rows [rows, columns] fp32; ``momentum`` becomes momentum1[row] in place.

    SGD:     mult = lr
    Adagrad: m += mean over the dim of (g + l2 * w)^2;  mult = lr / (sqrt(m) + eps)
    both:    w = (1 - mult * l2 - lr * decoupled) * w - mult * g

    Which of the two is a run-time choice without a branch: loads do not move above a branch. SGD has no state and
    touches none. ONE_ROW (see `updated_rows`) gives the same bits in every kernel: see `sum_in_pairs`. So products and sums
    that would be joined are an fma in the source: which of two products a compiler joins with their difference, or whether
    it does, depends on what else is in the kernel.
    """
    stateful = with_state(live, adagrad)
    statistic = with_l2_decay(gradient, weights, l2_decay)
    # fma with 0 is a product that stays one: joined with the sum over lanes, as ptxas would where a lane has one column,
    # it makes each lane of a row round its own product last, and the lanes do not agree on the sum.
    square = tl.fma(statistic, statistic, 0.0)
    if ONE_ROW:
        tl.debug_barrier()
        momentum = tl.fma(sum_in_pairs(square), 1.0 / dim.to(tl.float32), momentum)
    else:
        momentum += tl.sum(square, axis=1) / dim.to(tl.float32)
    tl.store(momentum1 + row, momentum, mask=stateful)
    mult = tl.where(stateful, learning_rate / (tl.sqrt_rn(momentum) + eps), learning_rate)
    kept = tl.fma(learning_rate, -decoupled_decay, tl.fma(mult, -l2_decay, 1.0))
    return tl.fma(kept[:, None], weights, -(mult[:, None] * gradient))
