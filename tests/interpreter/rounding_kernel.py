"""A kernel of the rounding alone. Imported where Triton interprets."""

import triton
import triton.language as tl
from common.rounding import round_stochastically


@triton.jit
def rounding_kernel(
    values, rows, seed, result, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DTYPE: tl.constexpr
):
    """result [ROWS, COLUMNS] = values, fp32, rounded; rows [ROWS] int64."""
    lane, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    element = lane[:, None] * COLUMNS + column[None, :]
    row = tl.load(rows + lane)
    value = round_stochastically(tl.load(values + element), row, column, tl.load(seed), DTYPE)
    tl.store(result + element, value)
