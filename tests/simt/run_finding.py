"""``find_runs`` on the host."""

from __future__ import annotations

import ctypes

import torch

from tests.simt.host_kernel import pointer, tuned_kernel
from tests.transposed import CHUNK, Transposed

# What memory holds before a kernel writes it.
OLD = -77


def find_runs(
    keys: torch.Tensor,
    values: torch.Tensor,
    features: torch.Tensor,
    total_rows: int,
    lookup_order: tuple[torch.Tensor, torch.Tensor] | None = None,
    *,
    side_by_side: int = 3,
) -> Transposed:
    """What find_runs makes of sorted ``keys``; ``lookup_order``: positions and factors of each lookup."""
    kernel, constants = tuned_kernel("find_runs", 8 * keys.element_size())
    assert constants["CHUNK"] == CHUNK
    count, slots = keys.numel(), features.shape[0]
    tiles, chunks = -(-count // constants["TILE"]), -(-count // CHUNK)
    # One entry more than each section has: nothing is written behind it.
    sizes = (count + 1, count, count, slots + 1, chunks, chunks)
    dtypes = (torch.int32, torch.int64, *[torch.int32] * 4)
    sections = [
        torch.full((size + 1,), OLD, dtype=dtype) for size, dtype in zip(sizes, dtypes, strict=True)
    ]
    lookup_positions, lookup_factors = lookup_order or (
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(1),
    )
    positions = values.clone()
    factors = torch.full((count,), float(OLD))
    status = torch.zeros(tiles, dtype=torch.int64)
    kernel(
        tiles,
        [
            pointer(keys),
            pointer(positions),  # Replaced in place, as the launcher has it.
            pointer(lookup_positions),
            pointer(lookup_factors),
            pointer(positions),
            pointer(factors),
            *map(pointer, sections),
            pointer(status),
            pointer(features),
            ctypes.c_int(count),
            ctypes.c_int(slots),
            ctypes.c_longlong(total_rows),
            ctypes.c_int(lookup_order is not None),
            ctypes.c_int(7),
        ],
        side_by_side,
    )
    for section in sections:
        assert section[-1] == OLD
    starts, rows, run_slots, begins, chunk_starts, chunk_runs = (part[:-1] for part in sections)
    runs = int((starts == count).nonzero()[0])
    assert (starts[runs + 1 :] == OLD).all()
    return Transposed(
        run_rows=rows[:runs].tolist(),
        positions=positions.tolist(),
        run_starts=starts[: runs + 1].tolist(),
        run_slots=run_slots[:runs].tolist(),
        run_begins=begins.tolist(),
        chunk_starts=chunk_starts.tolist(),
        chunk_runs=chunk_runs.tolist(),
        factors=factors.view(torch.int32).tolist() if lookup_order else [],
    )
