"""Repair a copy of the offsets in place, if ``check_offsets`` found a bad entry.

    repaired[i] = max over j <= i of clamp(offsets[j], 0, N), and repaired[last] = N

which is clamping each bag's start to [0, N] and its end to [start, N], one bag after the other. One program walks
the entries: a repair is rare, and without one this launch reads a single number.
"""

import triton
import triton.language as tl
from common.overlap import begin


@triton.jit
def _maximum(left, right):
    return tl.maximum(left, right)


@triton.jit
def repair_offsets_kernel(
    offsets, report, offsets_numel, indices_numel, overlap, BLOCK: tl.constexpr
):
    begin(overlap)
    if tl.load(report) > 0:
        reached = tl.zeros([], tl.int64)
        block_start = tl.zeros([], tl.int64)
        while block_start < offsets_numel:
            entry = block_start + tl.arange(0, BLOCK)
            exists = entry < offsets_numel
            value = tl.load(offsets + entry, mask=exists, other=0).to(tl.int64)
            value = tl.minimum(tl.maximum(value, reached), indices_numel)
            value = tl.associative_scan(value, 0, _maximum)
            reached = tl.max(value, axis=0)
            value = tl.where(entry == offsets_numel - 1, indices_numel, value)
            block_start += BLOCK
            tl.store(offsets + entry, value.to(offsets.dtype.element_ty), mask=exists)
