"""Decoupled look-back: the sums over all earlier tiles, in the launch that computes the tiles.

Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (2016). Each tile has a status word:
first nothing (0), then the tile's own sum (OWN), then the sum up to and including the tile (UP_TO). A tile publishes its
own sum, reads the words before it, WINDOW at a time, until it meets an UP_TO, and publishes its sum up to here.

Ordering: a word is all there is to read, flag and value change in one store, so no reader needs to see any other store
before it, and relaxed atomics suffice to publish: they act in L2, where the volatile loads of the readers look too.

Warps may read the same words at other times and stop at other tiles: whatever they add up, the sums are equal.

Progress: the number of a tile is that of its program, and programs start in this order. Whoever waits does so for
programs that have started; the earliest unfinished tile waits for nobody; and the next launch takes no place from a
program that has not started, because it may only start when all have.
"""

import triton
import triton.language as tl

# The two highest bits of a word.
OWN = tl.constexpr(1)
UP_TO = tl.constexpr(2)


@triton.jit
def count_and_last_before(status, tile, count, last, WINDOW: tl.constexpr):
    """(sum of ``count``, maximum of ``last``) over the tiles before ``tile``; scalars, int32.

    ``status`` is int64 [tiles], all 0 before the launch; a word holds 31 bits of each.
    """
    tl.atomic_xchg(status + tile, _word(count, last) | (1 << 62), sem="relaxed")
    count_before = tl.zeros([], tl.int32)
    last_before = tl.zeros([], tl.int32)
    nearest = tile - 1
    distance = tl.arange(0, WINDOW)
    while nearest >= 0:
        row = nearest - distance
        word = tl.load(status + row, mask=row >= 0, other=-(1 << 63), volatile=True)
        flag = (word >> 62) & 3
        end = tl.min(tl.where(flag == UP_TO, distance, WINDOW), axis=0)
        used = distance <= end
        if tl.min(tl.where(used, flag, OWN), axis=0) > 0:
            counts = ((word >> 31) & ((1 << 31) - 1)).to(tl.int32)
            lasts = (word & ((1 << 31) - 1)).to(tl.int32)
            count_before += tl.sum(tl.where(used, counts, 0), axis=0)
            last_before = tl.maximum(last_before, tl.max(tl.where(used, lasts, 0), axis=0))
            nearest = tl.where(end < WINDOW, -1, nearest - WINDOW)
    word = _word(count_before + count, tl.maximum(last_before, last))
    tl.atomic_xchg(status + tile, word | -(1 << 63), sem="relaxed")
    return count_before, last_before


@triton.jit
def _word(count, last):
    return (count.to(tl.int64) << 31) | last.to(tl.int64)
