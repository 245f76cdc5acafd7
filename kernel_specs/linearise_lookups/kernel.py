"""Per lookup i of bag (t, b): the global row that it reads, and where the gradient of its bag starts.

    keys[i]      = first_global_row_t + indices[i], or total_rows if the lookup is pruned (index -1);
                   an index outside [-1, rows_t) counts as 0, as the bounds check replaces it, or as -1 without rows
    positions[i] = b * output_width + output_column_t, or vbe_output_offsets[bag]: an element of grad_output
    factors[i]   = w_i / L, what the gradient is multiplied by (w_i = 1 without per-sample weights, L = 1 for SUM)

One program owns BAGS bags of one feature and takes LANES lookups of each at a time. It also counts the lowest digits of
its keys, for the first pass of the sort. Lookups before the first bag or after the last belong to no bag: forward
reads none of them, here they count as pruned.
"""

import triton
import triton.language as tl
from common.features import feature_bags
from common.indices import is_invalid
from common.overlap import begin, wait_for_previous


@triton.jit
def linearise_lookups_kernel(
    keys,  # [N]
    positions,  # [N] int32, the bits of a uint32
    factors,  # [N] fp32, written only if weighted or mean
    histogram,  # [2^DIGIT_BITS] int32
    features,  # [T, 8] int64
    indices,  # [N]
    offsets,  # [bags + 1]
    per_sample_weights,  # [N] fp32, read only if weighted
    vbe_bag_offsets,  # [T + 1] int64, read only if vbe
    vbe_output_offsets,  # [bags] int64, read only if vbe
    lookups,  # N
    batch_size,  # bags of each feature, if not vbe
    output_width,  # elements between rows of grad_output, if not vbe
    total_rows,
    weighted,
    mean,
    vbe,
    overlap,
    BAGS: tl.constexpr,
    LANES: tl.constexpr,
    DIGIT_BITS: tl.constexpr,
):
    KEY: tl.constexpr = keys.dtype.element_ty
    DIGITS: tl.constexpr = 1 << DIGIT_BITS
    TILE: tl.constexpr = BAGS * LANES

    begin(overlap)
    entry = features + tl.program_id(1) * 8
    feature = tl.load(entry)
    output_column = tl.load(entry + 5)
    rows = tl.load(entry + 4)
    first_global_row = tl.load(entry + 7)
    replacement = tl.where(rows > 0, first_global_row, total_rows)
    first_bag, bag_count = feature_bags(feature, batch_size, vbe_bag_offsets, vbe)

    bag = tl.program_id(0) * BAGS + tl.arange(0, BAGS)
    owned = bag < bag_count
    start = tl.load(offsets + first_bag + bag, mask=owned, other=0)
    end = tl.load(offsets + first_bag + bag + 1, mask=owned, other=0)
    length = (end - start).to(tl.int32)
    position = bag.to(tl.int64) * output_width + output_column
    if vbe != 0:
        position = tl.load(vbe_output_offsets + first_bag + bag, mask=owned, other=0)
    position = tl.broadcast_to(position.to(tl.int32)[:, None], [BAGS, LANES])
    divisor = tl.where(mean != 0, tl.maximum(length, 1), 1).to(tl.float32)[:, None]
    weighted_length = length * weighted

    lane = tl.arange(0, LANES)
    counts = tl.zeros([DIGITS], tl.int32)
    for _ in range(tl.cdiv(tl.max(length, axis=0), LANES)):
        in_bag = lane[None, :] < length[:, None]
        lookup = start[:, None] + lane[None, :]
        index = tl.load(indices + lookup, mask=in_bag, other=-1)
        key = tl.where(index >= 0, first_global_row + index, total_rows)
        key = tl.where(is_invalid(index.to(tl.int64), rows), replacement, key).to(KEY)
        tl.store(keys + lookup, key, mask=in_bag)
        tl.store(positions + lookup, position, mask=in_bag)
        if weighted + mean != 0:
            is_weighted = lane[None, :] < weighted_length[:, None]
            factor = tl.load(per_sample_weights + lookup, mask=is_weighted, other=1.0)
            tl.store(factors + lookup, tl.div_rn(factor, divisor), mask=in_bag)
        digit = tl.reshape((key & (DIGITS - 1)).to(tl.int32), [TILE])
        counts += tl.histogram(digit, DIGITS, mask=tl.reshape(in_bag, [TILE]))
        lane += LANES
    tl.atomic_add(histogram + tl.arange(0, DIGITS), counts, mask=counts > 0, sem="relaxed")

    pruned_digit = histogram + (total_rows & (DIGITS - 1))
    factored = weighted + mean
    if feature == 0:
        head = tl.load(offsets)
        _prune(keys, positions, factors, pruned_digit, 0, head, total_rows, factored, TILE)
    if feature == tl.num_programs(1) - 1:
        tail = tl.load(offsets + first_bag + bag_count)
        _prune(keys, positions, factors, pruned_digit, tail, lookups, total_rows, factored, TILE)
    wait_for_previous(overlap)


@triton.jit
def _prune(
    keys, positions, factors, pruned_digit, start, end, total_rows, factored, TILE: tl.constexpr
):
    """Lookups start .. end belong to no bag; the programs of one feature share them."""
    stride = tl.num_programs(0) * TILE
    for tile in range(start + tl.program_id(0) * TILE, end, stride):
        lookup = tile + tl.arange(0, TILE)
        exists = lookup < end
        tl.store(keys + lookup, total_rows.to(keys.dtype.element_ty), mask=exists)
        tl.store(positions + lookup, 0, mask=exists)
        if factored != 0:
            tl.store(factors + lookup, 0.0, mask=exists)
    if (tl.program_id(0) == 0) & (start < end):
        tl.atomic_add(pruned_digit, (end - start).to(tl.int32), sem="relaxed")
