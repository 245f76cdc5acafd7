"""Partial sums of the gradients of rows that at least CHUNK lookups use.

    partials[slot] = sum over the chunk's lookups i of factor_i * clamp(gradient[positions_i : positions_i + D])

A chunk is CHUNK consecutive lookups of a run in sorted order; a run's last chunk also takes the rest, and so has up to
2 * CHUNK - 1. The chunk that starts at position j has the slot j // CHUNK, which no other chunk can have: nothing is
counted or compacted. Sums are still multiplied by ``gradient_scale``; columns past the dim are 0.

A program takes one chunk at a time, ROWS lookups a step; row r of the tile sums the lookups r, r + ROWS, ..., and the
rows are added in a fixed tree: a chunk's bits depend on its lookups alone.
"""

import triton
import triton.language as tl
from common.gradients import (
    clip_limit,
    load_factors,
    load_gradients,
    load_scale,
    share_of_lookups,
)
from common.overlap import begin, wait_for_previous


@triton.jit
def sum_chunks_kernel(
    partials,  # [chunk_slots, partial_stride] fp32
    gradient,  # of the output
    gradient_scale,  # [1] fp32, read if scaled
    features,  # [T, 8] int64
    positions,  # [N], sorted: first element of each lookup's bag in the gradient
    factors,  # [N] fp32, sorted; read if FACTORED
    run_starts,  # [runs + 1]
    run_slots,  # [runs]
    run_begins,  # first run of each slot, from this launch's first one on
    chunk_starts,  # [chunk_slots], -1 for none
    chunk_runs,  # [chunk_slots], -1 for none
    group_slots,  # slots of this launch
    chunk_slots,
    partial_stride,  # at least BUCKET, a multiple of 16
    clip,  # bound of the gradient's elements, infinite for none
    scaled,
    overlap,  # see common.overlap
    GRADIENT_DTYPE: tl.constexpr,
    BUCKET: tl.constexpr,
    FACTORED: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    CHUNK: tl.constexpr,
):
    # 16 bytes of gradient in elements. Weights of an aligned launch are no wider than its gradient, so their 16 bytes
    # are at least as many elements.
    UNIT: tl.constexpr = (4 if GRADIENT_DTYPE == "fp32" else 8) if ALIGNED else 1

    begin(overlap)
    first = tl.load(run_begins)
    end = tl.load(run_begins + group_slots)
    limit = clip_limit(clip, load_scale(gradient_scale, scaled))
    stride = partial_stride.to(tl.int64)
    column = tl.arange(0, BUCKET)
    for chunk_slot in range(tl.program_id(0), chunk_slots, tl.num_programs(0)):
        run = tl.load(chunk_runs + chunk_slot)
        if (run >= first) & (run < end):
            start = tl.load(chunk_starts + chunk_slot)
            stop = tl.load(run_starts + run + 1)
            stop = tl.where(stop - start < 2 * CHUNK, stop, start + CHUNK)
            dim = tl.load(features + tl.load(run_slots + run).to(tl.int64) * 8 + 3)
            in_row = (column < dim // UNIT * UNIT)[None, :]
            lookup = start + tl.arange(0, ROWS)
            total = tl.zeros([ROWS, BUCKET], tl.float32)
            for _ in range(start, stop, ROWS * UNROLL):
                for _ in tl.static_range(UNROLL):
                    live = lookup < stop
                    position = tl.load(positions + lookup, mask=live, other=0)
                    gradients = load_gradients(gradient, position, live, in_row, column, UNIT)
                    factor = load_factors(factors, lookup, live, FACTORED)
                    total += share_of_lookups(gradients, factor, limit, FACTORED)
                    lookup += ROWS
            partial = tl.multiple_of(chunk_slot * stride, 16)
            tl.store(partials + partial + column, tl.sum(total, axis=0))
    wait_for_previous(overlap)
