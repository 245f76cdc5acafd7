"""Rounding fp32 to a row's dtype: to the nearest number, or to one of the two around it, by chance."""

import triton
import triton.language as tl


@triton.jit
def _mixed(word):
    """A bijection of uint32 in which every bit depends on every other: `lowbias32` of Chris Wellons' hash-prospector."""
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15)) * 0x846CA68B
    return word ^ (word >> 16)


@triton.jit
def load_rounding_key(rounding_seed, stochastic, DTYPE: tl.constexpr):
    """[] uint32: what `round_stochastically` takes of the seed, an int64; 0 where nothing is rounded by chance.

    Before a loop: in it, each tile would wait for the load and for the mixing.
    """
    if DTYPE == tl.float32:
        return tl.full([], 0, tl.uint32)
    seed = tl.load(rounding_seed, mask=stochastic != 0, other=0)
    return _mixed(seed.to(tl.uint32) ^ _mixed((seed >> 32).to(tl.uint32)))


@triton.jit
def _random_words(rounding_key, row, column):
    """[rows, columns] uint32: a function of key and global row (int64), and of the pair that a column is in."""
    high = (row >> 32).to(tl.uint32)
    key = _mixed(row.to(tl.uint32) + high * 0x9E3779B9 + rounding_key)
    # Steps by the golden ratio: pairs that are neighbours lie far apart.
    pair = (column >> 1).to(tl.uint32) * 0x9E3779B9
    return _mixed(key[:, None] + pair[None, :])


@triton.jit
def round_stochastically(value, row, column, rounding_key, DTYPE: tl.constexpr):
    """[rows, columns] of DTYPE, fp16 or bf16: for each fp32 ``value`` the number below or above it, by chance.

    Above with the probability of the value's distance from the one below over the distance of the two, so that the mean
    is right. Numbers of DTYPE, infinities and NaN stay. Adds a random number to the bits that DTYPE has not, and drops
    them. ``row`` [rows] is the global row, ``column`` [columns] the column in it, ``rounding_key`` what
    `load_rounding_key` gives: equal ones round alike, in any launch and on any device. Both columns of a pair take their
    bits from one word.
    """
    word = _random_words(rounding_key, row, column)
    odd = (column & 1)[None, :] != 0
    if DTYPE == tl.bfloat16:
        bits = value.to(tl.uint32, bitcast=True) + tl.where(odd, word >> 16, word & 0xFFFF)
        rounded = (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    else:
        # Times 2^-112 numbers below the normal ones of fp16 are such in fp32 too, and all drop 13 bits.
        scaled = (value * 1.925929944387236e-34).to(tl.uint32, bitcast=True)
        bits = scaled + tl.where(odd, word >> 19, word & 0x1FFF)
        rounded = (bits & 0xFFFFE000).to(tl.float32, bitcast=True) * 5.192296858534828e33
    is_number = value == value  # noqa: PLR0124  NaN is not itself
    return tl.where(is_number, rounded, value).to(DTYPE)
