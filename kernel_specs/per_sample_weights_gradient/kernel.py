"""The gradient of the per-sample weights: one number per lookup.

    result[i] = scale_b * dot(gradient of bag b, W_t[indices_i])

for every lookup i of bag (t, b); scale_b = 1 for SUM and 1 / L_b for MEAN. A pruned row (index -1) gives 0, whatever
the gradient, and so does a lookup of no bag: before the first bag, or behind the last one. fp32 arithmetic, the row as it is now: before the backward updates it.

One program owns BAGS bags of one feature. Each has ROWS slots, slot r taking the lookups r, r + ROWS, ...
"""

import triton
import triton.language as tl
from common.features import feature_bags, load_feature
from common.overlap import begin, wait_for_previous


@triton.jit
def per_sample_weights_gradient_kernel(
    result,  # [N] fp32
    gradient,  # [B, output_width] or 1-D (VBE)
    weights,  # 1-D, every table
    features,  # [features of this launch, 8] int64
    indices,  # [N]
    offsets,  # [bags + 1]
    vbe_bag_offsets,  # [T + 1] int64, read only if vbe
    vbe_output_offsets,  # [bags] int64, read only if vbe
    batch_size,  # bags of each feature, if not vbe
    total_bags,
    indices_numel,  # N
    output_width,  # elements between the gradient's rows, if not vbe
    mean,
    vbe,
    overlap,  # see common.overlap
    WEIGHT_DTYPE: tl.constexpr,
    BUCKET: tl.constexpr,
    ALIGNED: tl.constexpr,
    BAGS: tl.constexpr,
    ROWS: tl.constexpr,
):
    # 16 bytes of weights in elements: what divides an aligned launch's rows, dims and places in the gradient.
    UNIT: tl.constexpr = (4 if WEIGHT_DTYPE == "fp32" else 8) if ALIGNED else 1

    begin(overlap)
    feature, weight_offset, row_pitch, dim, output_column = load_feature(
        features, tl.program_id(1), UNIT
    )
    first_bag, bag_count = feature_bags(feature, batch_size, vbe_bag_offsets, vbe)

    slot = tl.arange(0, BAGS * ROWS)
    bag = tl.program_id(0) * BAGS + slot // ROWS
    owned = bag < bag_count
    start = tl.load(offsets + first_bag + bag, mask=owned, other=0).to(tl.int64)
    end = tl.load(offsets + first_bag + bag + 1, mask=owned, other=0).to(tl.int64)
    length = (end - start).to(tl.int32)
    scale = tl.where(mean != 0, 1.0 / tl.maximum(length, 1).to(tl.float32), 1.0)

    # Whoever has the first bag, or the last one, has the lookups outside of the bags.
    program_bag = first_bag + tl.program_id(0) * BAGS
    if program_bag == 0:
        bags_begin = tl.load(offsets).to(tl.int64)
        for lookup in range(0, bags_begin, BAGS * ROWS):
            tl.store(result + lookup + slot, 0.0, mask=lookup + slot < bags_begin)
    if program_bag + tl.minimum(BAGS, bag_count - tl.program_id(0) * BAGS) == total_bags:
        bags_end = tl.load(offsets + total_bags).to(tl.int64)
        for lookup in range(bags_end, indices_numel, BAGS * ROWS):
            tl.store(result + lookup + slot, 0.0, mask=lookup + slot < indices_numel)

    column = tl.arange(0, BUCKET)
    in_row = (column < dim // UNIT * UNIT)[None, :]
    vbe_position = tl.load(
        vbe_output_offsets + first_bag + bag, mask=bag < bag_count * vbe, other=0
    )
    position = tl.where(vbe != 0, vbe_position, bag.to(tl.int64) * output_width + output_column)
    position = tl.multiple_of(position, UNIT)
    bag_gradient = tl.load(
        gradient + position[:, None] + column[None, :],
        mask=(length > 0)[:, None] & in_row,
        other=0.0,
    ).to(tl.float32)

    table = weights + weight_offset
    lookup = slot % ROWS
    for _ in range(tl.cdiv(tl.max(length, axis=0), ROWS)):
        exists = lookup < length
        index = tl.load(indices + start + lookup, mask=exists, other=-1).to(tl.int64)
        used = index >= 0
        row = tl.load(
            table + (index * row_pitch)[:, None] + column[None, :],
            mask=used[:, None] & in_row,
            other=0.0,
        ).to(tl.float32)
        # A product that stays one (see common/optimizers/rowwise.py): all lanes of a row agree on the sum.
        dot = tl.sum(tl.fma(row, bag_gradient, 0.0), axis=1) * scale
        # Not 0 times the gradient: that is NaN for an infinite one.
        tl.store(result + start + lookup, tl.where(used, dot, 0.0), mask=exists)
        lookup += ROWS
    wait_for_previous(overlap)
