"""Lookups with bad indices and offsets, for the bounds checks."""

from __future__ import annotations

import torch

from tests.gpu import installed
from tests.gpu.support import Lookup, make_lookup, make_tables

ROWS = (10, 23, 7)
WIDTHS = [torch.int32, torch.int64]


def make(
    device: torch.device, index_dtype: torch.dtype, *, batch: int = 40, vbe: bool = False
) -> Lookup:
    """Three features on three tables, in bags of 0 to 6 lookups."""
    tables = make_tables(ROWS, (16, 8, 32), torch.float32, device)
    batch_sizes = [[batch, 3], [0, 11], [5, 0]] if vbe else None
    bags = sum(map(sum, batch_sizes)) if batch_sizes else 3 * batch
    lengths = torch.randint(0, 7, (bags,), generator=torch.Generator().manual_seed(batch))
    return make_lookup(
        tables,
        (0, 1, 2),
        installed.buckets(),
        lengths,
        index_dtype=index_dtype,
        batch_sizes=batch_sizes,
        pruned=0.1,
        seed=batch,
    )


def good(indices: torch.Tensor, offsets: torch.Tensor) -> None:
    """Nothing to put right."""


def index_past_the_end(indices: torch.Tensor, offsets: torch.Tensor) -> None:
    """torchrec 575: E = 10, index 10 and -7."""
    indices[0], indices[3] = 10, -7


def every_index_invalid(indices: torch.Tensor, offsets: torch.Tensor) -> None:
    """FBGEMM 3979: the count equals N."""
    indices.fill_(1000)


def offsets_off_at_both_ends(indices: torch.Tensor, offsets: torch.Tensor) -> None:
    """FBGEMM's bounds tests."""
    offsets[0] = -100
    offsets[-1] += 100


def offsets_falling(indices: torch.Tensor, offsets: torch.Tensor) -> None:
    """Entries that fall, and one past N; what they shift to other features is checked against those."""
    offsets[5] = offsets[2] - 1
    offsets[20] = indices.numel() + 7
    offsets[30] = 0


def offsets_end_early(indices: torch.Tensor, offsets: torch.Tensor) -> None:
    """The last entry is below N and the first above 0: no lookup may be lost or read twice."""
    offsets[0] = 3
    offsets[-1] -= 2


DAMAGES = [
    good,
    index_past_the_end,
    every_index_invalid,
    offsets_off_at_both_ends,
    offsets_falling,
    offsets_end_early,
]


def check(lookup: Lookup, mode: str, count: torch.Tensor | None = None):
    vbe = None if lookup.vbe is None else lookup.vbe.bag_offsets
    return torch.ops.tbe_aot.check_bounds(
        lookup.indices, lookup.offsets, lookup.features, lookup.layout, mode, count, vbe
    )
