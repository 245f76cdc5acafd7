"""Pooled forward lookup: one output row per (feature, bag).

    out[b, column_t : column_t + D_t] = scale_b * sum_i w_i * W_t[indices_i]

i runs over the bag (t, b), ``offsets[bag] .. offsets[bag + 1]``; w_i = 1 without per-sample weights;
scale_b = 1 for SUM and 1 / L_b for MEAN; index -1 (a pruned row) adds nothing but counts in L_b.
Rows are widened before they are added: to fp32 from fp16 and bf16, to fp64 from fp32. The result is
rounded once, to the output dtype.

One program owns BAGS bags of one feature. Each bag is gathered by ROWS slots, slot r taking the lookups
r, r + ROWS, ...; the slots of a bag are added in a fixed tree, so equal inputs give equal bits. Long bags
want BAGS = 1 and several rows in flight, short ones several bags in lockstep.

If CHECKED, an index outside [-1, rows) of its table is read as 0 (as -1 where there is no row), and counted as
``check_indices`` does: invalid_count[0] += invalid indices; report[2] = max(N - position) over them.
"""

import triton
import triton.language as tl
from common.features import feature_bags, load_feature
from common.indices import is_invalid
from common.output import store_rows
from common.overlap import begin, start_next, wait_for_previous


@triton.jit
def forward_kernel(
    output,  # [B, output_stride] or 1-D (VBE), fp32, fp16 or bf16 by output_dtype
    weights,  # 1-D, every table
    features,  # [features of this launch, 8] int64
    indices,  # [N]
    offsets,  # [bags + 1]
    per_sample_weights,  # [N] fp32, read only if WEIGHTED
    vbe_bag_offsets,  # [T + 1] int64, read only if vbe
    vbe_output_offsets,  # [bags] int64, read only if vbe
    batch_size,  # bags of each feature, if not vbe
    output_stride,  # elements between output rows, if not vbe
    output_dtype,  # 0 fp32, 1 fp16, 2 bf16
    mean,
    vbe,
    overlap,  # 1: the next launch may start, 2: this one overlaps the one before, 4: wait for it first (if CHECKED)
    invalid_count,  # [1] int64, written only if CHECKED
    report,  # [4] int64 as in check_offsets, written only if CHECKED
    indices_numel,  # N, read only if CHECKED
    WEIGHT_DTYPE: tl.constexpr,
    BUCKET: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ALIGNED: tl.constexpr,
    CHECKED: tl.constexpr,
    BAGS: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    EVICTION: tl.constexpr,
):
    # 16 bytes in elements: where an aligned launch promises that rows of the weights start.
    UNIT: tl.constexpr = (4 if WEIGHT_DTYPE == "fp32" else 8) if ALIGNED else 1
    ACCUMULATOR: tl.constexpr = tl.float64 if WEIGHT_DTYPE == "fp32" else tl.float32
    SLOTS: tl.constexpr = BAGS * ROWS

    if CHECKED:
        begin(overlap)  # The check of the offsets may be the launch before.
    else:
        start_next(overlap)
    feature, weight_offset, row_pitch, dim, output_column = load_feature(
        features, tl.program_id(1), UNIT
    )
    first_bag, bag_count = feature_bags(feature, batch_size, vbe_bag_offsets, vbe)

    slot = tl.arange(0, SLOTS)
    bag = tl.program_id(0) * BAGS + slot // ROWS
    start = tl.load(offsets + first_bag + bag, mask=bag < bag_count, other=0).to(tl.int64)
    end = tl.load(offsets + first_bag + bag + 1, mask=bag < bag_count, other=0).to(tl.int64)
    length = (end - start).to(tl.int32)
    steps = tl.cdiv(tl.max(length, axis=0), ROWS)

    column = tl.arange(0, BUCKET)
    # The padding of an aligned row is read with it and never stored.
    in_padded_row = (column < tl.cdiv(dim, UNIT) * UNIT)[None, :]
    table = weights + weight_offset
    bag_indices = indices + start
    bag_weights = per_sample_weights + start
    lookup = slot % ROWS
    if CHECKED:
        rows = tl.load(features + tl.program_id(1) * 8 + 4)
        replacement = tl.where(rows > 0, 0, -1).to(tl.int64)
        any_invalid = tl.zeros([SLOTS], tl.int1)
    total = tl.zeros([SLOTS, BUCKET], ACCUMULATOR)
    for _ in range(0, steps, UNROLL):
        for _ in tl.static_range(UNROLL):
            index = tl.load(bag_indices + lookup, mask=lookup < length, other=-1).to(tl.int64)
            if CHECKED:
                invalid = is_invalid(index, rows)
                any_invalid |= invalid
                index = tl.where(invalid, replacement, index)
            used = index >= 0
            row = tl.load(
                table + (index * row_pitch)[:, None] + column[None, :],
                mask=used[:, None] & in_padded_row,
                other=0.0,
                eviction_policy=EVICTION,
            ).to(ACCUMULATOR)
            if WEIGHTED:
                sample_weight = tl.load(bag_weights + lookup, mask=used, other=0.0)
                row *= sample_weight.to(ACCUMULATOR)[:, None]
            total += row
            lookup += ROWS

    if CHECKED:
        # Rare: the loop above only remembers that there are some, which costs it no registers.
        if tl.max(any_invalid.to(tl.int32), axis=0) > 0:
            _count_invalid(
                bag_indices,
                start,
                slot % ROWS,
                length,
                steps,
                rows,
                indices_numel,
                invalid_count,
                report,
                ROWS,
            )

    pooled = tl.sum(tl.reshape(total, [BAGS, ROWS, BUCKET]), axis=1)
    bag = tl.program_id(0) * BAGS + tl.arange(0, BAGS)
    owned = bag < bag_count
    if mean != 0:
        bag_length = tl.max(tl.reshape(length, [BAGS, ROWS]), axis=1)
        pooled /= tl.maximum(bag_length, 1).to(ACCUMULATOR)[:, None]
    vbe_row = tl.load(vbe_output_offsets + first_bag + bag, mask=bag < bag_count * vbe, other=0)
    output_row = tl.where(vbe != 0, vbe_row, bag.to(tl.int64) * output_stride + output_column)
    # Rows of the output are as wide as the dims of all tables make them: stores are vectors where they can be. The
    # division says so to the compiler (and folds away where UNIT is 1).
    if tl.max(tl.where(owned, output_row, 0) % UNIT, axis=0) + dim % UNIT == 0:
        vector_row, vector_dim = output_row // UNIT * UNIT, dim // UNIT * UNIT
        in_row = owned[:, None] & (column < vector_dim)[None, :]
        store_rows(output, vector_row[:, None] + column[None, :], pooled, in_row, output_dtype)
    else:
        in_row = owned[:, None] & (column < dim)[None, :]
        store_rows(output, output_row[:, None] + column[None, :], pooled, in_row, output_dtype)
    wait_for_previous(overlap)


@triton.jit
def _count_invalid(
    bag_indices,
    start,
    lookup,
    length,
    steps,
    rows,
    indices_numel,
    invalid_count,
    report,
    ROWS: tl.constexpr,
):
    """Read the program's lookups once more, for the number of invalid ones and the first of them."""
    count = tl.zeros_like(length)
    first = tl.zeros_like(start)
    for _ in range(steps):
        index = tl.load(bag_indices + lookup, mask=lookup < length, other=-1).to(tl.int64)
        invalid = is_invalid(index, rows)
        count += invalid.to(tl.int32)
        first = tl.maximum(first, tl.where(invalid, indices_numel - (start + lookup), 0))
        lookup += ROWS
    tl.atomic_add(invalid_count, tl.sum(count.to(tl.int64), axis=0), sem="relaxed")
    tl.atomic_max(report + 2, tl.max(first, axis=0), sem="relaxed")
