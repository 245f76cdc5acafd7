"""One pass of a stable least-significant-digit radix sort: keys, each with a value, in the order of one digit.

    digit(key) = (key >> shift) mod 2^DIGIT_BITS

A key goes to the place of its digit (the keys of smaller digits, from the histogram), plus the keys of its digit in
earlier tiles (look-back), plus those before it in its tile. One program owns a tile of TILE keys and sorts it by
(digit, place in the tile) first, so that each digit's keys leave as one contiguous stretch. It also counts the next
digits, for the next pass.
"""

import triton
import triton.language as tl
from common.look_back import counts_before
from common.overlap import begin, wait_for_previous


@triton.jit
def sort_pass_kernel(
    keys_in,  # [N], none negative
    values_in,  # [N] int32, not read if count_up
    keys_out,  # [N]
    values_out,  # [N] int32
    histogram,  # [2^DIGIT_BITS] int32, of this digit over all keys
    next_histogram,  # [2^DIGIT_BITS] int32, counted up
    status,  # [tiles, 2^DIGIT_BITS] int32, 0
    lookups,  # N
    shift,
    count_up,  # 1: the values are 0, 1, 2, ...
    overlap,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    DIGIT_BITS: tl.constexpr,
):
    DIGITS: tl.constexpr = 1 << DIGIT_BITS

    begin(overlap)
    tile = tl.program_id(0)
    lane = tl.arange(0, TILE)
    exists = tile * TILE + lane < lookups
    # Lanes behind the last key take the highest digit and stay behind the keys that have it.
    rest = tl.load(keys_in + tile * TILE + lane, mask=exists, other=-1) >> shift
    digit = (rest & (DIGITS - 1)).to(tl.int32)
    counts = tl.histogram(digit, DIGITS, mask=exists)
    # Two shifts: in the last pass one would be as wide as the key.
    next_digit = ((rest >> DIGIT_BITS) & (DIGITS - 1)).to(tl.int32)
    next_counts = tl.histogram(next_digit, DIGITS, mask=exists)
    digits = tl.arange(0, DIGITS)
    tl.atomic_add(next_histogram + digits, next_counts, mask=next_counts > 0, sem="relaxed")

    ordered = tl.sort(digit * TILE + lane)
    digit = ordered // TILE
    source = tile * TILE + ordered % TILE
    exists = source < lookups
    # Again, now in the order of the digits: the tile is in L1, moving it between lanes takes longer.
    key = tl.load(keys_in + source, mask=exists, other=0)
    value = source
    if count_up == 0:
        value = tl.load(values_in + source, mask=exists, other=0)

    total = tl.load(histogram + digits)
    place = tl.cumsum(total, axis=0) - total + counts_before(status, tile, counts, DIGITS, WINDOW)
    first_lane = tl.cumsum(counts, axis=0) - counts
    target = tl.gather(place - first_lane, digit, axis=0) + lane
    tl.store(keys_out + target, key, mask=exists)
    tl.store(values_out + target, value, mask=exists)
    wait_for_previous(overlap)
