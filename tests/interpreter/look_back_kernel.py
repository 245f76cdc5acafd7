"""The decoupled look-back of one tile, as a kernel; to be imported where Triton interprets."""

from __future__ import annotations

import triton
import triton.language as tl
from common.look_back import count_and_last_before  # type: ignore[import-not-found] # in kernel_specs


@triton.jit
def look_back_kernel(before, status, tile, count, last, WINDOW: tl.constexpr):
    count_before, last_before = count_and_last_before(
        status,
        tile,
        tl.full([], count, tl.int32),
        tl.full([], last, tl.int32),
        WINDOW,
    )
    tl.store(before, count_before)
    tl.store(before + 1, last_before)
