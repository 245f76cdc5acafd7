"""Sums over long runs: of a chunk's gradients, and of a run's partial sums.

What they return depends on the lookups of the run alone. Kernels that shall agree to the bit use them with equal
constants; `sum_chunk` also with equal `num_warps`, because the rows of its tile are added in the order of their layout.
Its product and sum are one fma in the source: whether a compiler joins the two depends on what else is in the kernel.
"""

import triton
import triton.language as tl

from common.gradients import clamp_gradients, load_factors, load_gradients, unscaled_factors


@triton.jit
def sum_chunk(
    gradient,
    features,
    positions,
    factors,
    slot,
    start,
    stop,
    limit,
    unscale,
    column,
    FACTORED: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """[columns] fp32: the sum over lookups start .. stop of factor * unscale * clamp(gradient); 0 past the dim.

    ROWS lookups a step; row r of the tile sums the lookups r, r + ROWS, ..., and the rows are added in a fixed tree.
    ``slot`` is the run's row of ``features``.
    """
    dim = tl.load(features + slot.to(tl.int64) * 8 + 3)
    in_row = (column < dim // UNIT * UNIT)[None, :]
    lookup = start + tl.arange(0, ROWS)
    total = tl.zeros([ROWS, column.shape[0]], tl.float32)
    for _ in range(start, stop, ROWS * UNROLL):
        for _ in tl.static_range(UNROLL):
            live = lookup < stop
            position = tl.load(positions + lookup, mask=live, other=0)
            gradients = load_gradients(gradient, position, live, in_row, column, UNIT)
            factor = load_factors(factors, lookup, live, FACTORED)
            value = clamp_gradients(gradients, limit)
            total = tl.fma(value, unscaled_factors(factor, unscale, FACTORED), total)
            lookup += ROWS
    return tl.sum(total, axis=0)


@triton.jit
def sum_partials(partials, chunk_slot, chunks, stride, column, PARTIALS: tl.constexpr):
    """[1, columns] fp32: the sum of ``chunks`` partial sums, which lie side by side from ``chunk_slot`` on.

    PARTIALS of them are added one after the other, and so are the sums of these: no order is left to a layout.

    The loads go to the L2 cache (.cg). Other programs have written the partial sums, perhaps during this launch, and
    the L1 cache of a multiprocessor does not see what others write: a line that is in it may be older. Reading once
    what comes once, it would be of no use either.
    """
    total = tl.zeros([1, column.shape[0]], tl.float32)
    for first in range(0, chunks, PARTIALS):
        some = tl.zeros([1, column.shape[0]], tl.float32)
        for i in tl.static_range(PARTIALS):
            start = tl.multiple_of((chunk_slot + first + i) * stride, 16)
            live = first + i + tl.zeros([1, column.shape[0]], tl.int32) < chunks
            some += tl.load(
                partials + start + column[None, :], mask=live, other=0.0, cache_modifier=".cg"
            )
        total += some
    return total
