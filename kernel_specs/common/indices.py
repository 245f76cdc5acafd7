"""Indices that are out of bounds, by the one definition that all kernels share."""

import triton
import triton.language as tl


@triton.jit
def is_invalid(index, rows):
    """Whether an index, int64, is outside [-1, rows) of its table; one comparison, without a sign."""
    return (index + 1).to(tl.uint64, bitcast=True) > rows.to(tl.uint64, bitcast=True)
