"""Stochastic rounding in plain integers: the reference for every implementation, from the text of docs/operators.md."""

from __future__ import annotations

import math
import struct

WORD = 2**32
# (bits of fp32 that are dropped, the smallest normal number's exponent)
DROPPED = {"fp16": (13, -14), "bf16": (16, -126)}


def mixed(word: int) -> int:
    """lowbias32."""
    word = (word ^ word >> 16) * 0x7FEB352D % WORD
    word = (word ^ word >> 15) * 0x846CA68B % WORD
    return word ^ word >> 16


def random_bits(seed: int, row: int, column: int) -> int:
    """16 bits for an element: its half of the word of its pair of columns."""
    seed %= 2**64
    key = mixed((row + (row >> 32) * 0x9E3779B9 + mixed(seed % WORD ^ mixed(seed >> 32))) % WORD)
    word = mixed((key + (column >> 1) * 0x9E3779B9) % WORD)
    return word >> 16 if column & 1 else word & 0xFFFF


def rounded(value: float, seed: int, row: int, column: int, dtype: str) -> float:
    """``value``, an fp32 number, as a number of dtype: the one of smaller magnitude, or the next.

    fp16 takes 13 bits: the highest of an odd column's half, the lowest of an even column's.
    """
    if math.isnan(value) or math.isinf(value) or value == 0:
        return value
    dropped, lowest = DROPPED[dtype]
    bits = random_bits(seed, row, column)
    if dtype == "fp16":
        bits = bits >> 3 if column & 1 else bits & 0x1FFF
    exponent = max(math.frexp(value)[1] - 1, lowest)
    step = 2.0 ** (exponent - 23 + dropped)  # Between numbers of dtype.
    below, rest = divmod(abs(value), step)
    # fp16's numbers below the normal ones: what fp32 cannot hold beside them is rounded away first.
    shares = round(rest / step * 2**dropped)
    size = (below + (shares + bits >= 2**dropped)) * step
    most = 65504.0 if dtype == "fp16" else struct.unpack("f", b"\x00\x00\x7f\x7f")[0]
    return math.copysign(math.inf if size > most else size, value)
