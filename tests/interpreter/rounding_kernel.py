"""A kernel of the rounding alone. Imported where Triton interprets."""

import triton
import triton.language as tl
from common.rounding import load_rounding_key, round_stochastically  # type: ignore[import-not-found]  # in kernel_specs


@triton.jit
def rounding_kernel(
    values, rows, seed, result, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DTYPE: tl.constexpr
):
    """result [ROWS, COLUMNS] = values, fp32, rounded; rows [ROWS] int64."""
    lane, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    element = lane[:, None] * COLUMNS + column[None, :]
    row = tl.load(rows + lane)
    key = load_rounding_key(seed, 1, DTYPE)
    value = round_stochastically(tl.load(values + element), row, column, key, DTYPE)
    tl.store(result + element, value)
