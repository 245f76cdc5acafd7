"""Rows of the tables by their global number: where they are, and how they are stored."""

import triton
import triton.language as tl

from common.rounding import round_stochastically


@triton.jit
def find_rows(features, slot, row, live, UNIT: tl.constexpr):
    """(first element in the weights, dim) of global rows, int64 and int32 [rows]; 0 and 1 where not ``live``.

    ``slot`` is a feature's row in the feature table. UNIT elements divide weight_offset and row_pitch in an aligned
    launch (see `common.features`).
    """
    entry = features + slot.to(tl.int64) * 8
    weight_offset = tl.multiple_of(tl.load(entry + 1, mask=live, other=0), UNIT)
    row_pitch = tl.load(entry + 2, mask=live, other=0).to(tl.uint32)
    row_pitch = tl.multiple_of(row_pitch, UNIT).to(tl.int64)
    dim = tl.load(entry + 3, mask=live, other=1).to(tl.int32)
    first_global_row = tl.load(entry + 7, mask=live, other=0)
    return weight_offset + (row - first_global_row) * row_pitch, dim


@triton.jit
def columns_of_rows(dim, live, column, UNIT: tl.constexpr):
    """[rows, columns]: what belongs to a row. UNIT elements divide the dims of an aligned launch: vectors, no rest."""
    return live[:, None] & (column[None, :] < (dim // UNIT * UNIT)[:, None])


@triton.jit
def store_rows(
    weights, position, value, mask, row, column, rounding_key, stochastic, EVICTION: tl.constexpr
):
    """Round updated rows [rows, columns] from fp32 to the weights' dtype, by chance if ``stochastic``, and store them.

    A branch that nothing is loaded behind costs no time; an axis would double the variants.
    """
    DTYPE: tl.constexpr = weights.dtype.element_ty
    rounded = value.to(DTYPE)
    if DTYPE != tl.float32:
        if stochastic != 0:
            rounded = round_stochastically(value, row, column, rounding_key, DTYPE)
    tl.store(weights + position, rounded, mask=mask, eviction_policy=EVICTION)
