"""Copy the indices, replacing each one outside [-1, rows) of its feature's table by 0.

0 is what the field's reference implementation reads and trains instead; a table without rows has no row 0, there -1
(a pruned row) is used. Program (x, slot) strides over the lookups of one feature, which lie side by side because
bags are feature-major. Lookups before the first offset belong to no bag: the first feature copies them unchecked.

invalid_count[0] += invalid indices; report[2] = max(N - position) over them (zero: none; maximum: the first).
"""

import triton
import triton.language as tl
from common.features import feature_bags
from common.overlap import begin


@triton.jit
def check_indices_kernel(
    indices_out,  # [N]
    invalid_count,  # [1] int64
    report,  # [4] int64
    indices,  # [N]
    offsets,  # [bags + 1], checked
    features,  # [T, 8] int64
    vbe_bag_offsets,  # [T + 1] int64, read only if vbe
    indices_numel,
    batch_size,
    vbe,
    overlap,
    BLOCK: tl.constexpr,
):
    begin(overlap)
    entry = features + tl.program_id(1) * 8
    feature = tl.load(entry)
    rows = tl.load(entry + 4)
    first_bag, bag_count = feature_bags(feature, batch_size, vbe_bag_offsets, vbe)
    start = tl.load(offsets + first_bag).to(tl.int64)
    end = tl.load(offsets + first_bag + bag_count).to(tl.int64)
    copy_start = tl.where(feature == 0, 0, start)
    replacement = tl.where(rows > 0, 0, -1)

    invalid = tl.zeros([], tl.int64)
    first = tl.zeros([], tl.int64)
    stride = tl.num_programs(0).to(tl.int64) * BLOCK
    for block_start in range(copy_start + tl.program_id(0).to(tl.int64) * BLOCK, end, stride):
        position = block_start + tl.arange(0, BLOCK)
        exists = position < end
        index = tl.load(indices + position, mask=exists, other=-1)
        bad = ((index < -1) | (index >= rows)) & exists & (position >= start)
        tl.store(
            indices_out + position, tl.where(bad, replacement.to(index.dtype), index), mask=exists
        )
        invalid += tl.sum(bad.to(tl.int64), axis=0)
        first = tl.maximum(first, tl.max(tl.where(bad, indices_numel - position, 0), axis=0))
    if invalid > 0:
        tl.atomic_add(invalid_count, invalid, sem="relaxed")
        tl.atomic_max(report + 2, first, sem="relaxed")
