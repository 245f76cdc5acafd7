"""Validate offsets and copy them.

An entry is bad when it is negative, above N, below the entry before it, or, for the last one, not N. The copy is
what later kernels read; ``repair_offsets`` mends it if any entry was bad, so the caller's tensor is never written.

report[0] += bad entries; report[1] = max(offsets_numel - entry) over the bad ones, so that a zeroed report means
"none" and the maximum means "first".
"""

import triton
import triton.language as tl
from common.overlap import begin


@triton.jit
def check_offsets_kernel(
    offsets_out, report, offsets, offsets_numel, indices_numel, overlap, BLOCK: tl.constexpr
):
    begin(overlap)
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = entry < offsets_numel
    value = tl.load(offsets + entry, mask=exists, other=0)
    before = tl.load(offsets + entry - 1, mask=exists & (entry > 0), other=0)
    tl.store(offsets_out + entry, value, mask=exists)
    bad = (value < before) | (value < 0) | (value > indices_numel)
    bad = bad | ((entry == offsets_numel - 1) & (value != indices_numel))
    bad = bad & exists
    bad_count = tl.sum(bad.to(tl.int64), axis=0)
    if bad_count > 0:
        tl.atomic_add(report, bad_count, sem="relaxed")
        tl.atomic_max(
            report + 1, tl.max(tl.where(bad, offsets_numel - entry, 0), axis=0), sem="relaxed"
        )
