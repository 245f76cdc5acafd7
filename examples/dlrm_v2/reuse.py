"""Ids whose reuse inside one batch follows production traffic.

Published statistics of production recommender traffic (788 tables, batch 131072, 1.4e9 indices, 1.1e8 unique rows) say how often the
unique rows of one batch are used: a third of them once, and a few rows more than 2048 times that hold a quarter of all indices.
Uniform ids would make a cache look worse than it is, and one Zipf exponent fits only one end of this histogram.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_Draw = Callable[[int, torch.Generator], torch.Tensor]

# Share of a batch's unique rows that are used 1, 2, 3-4, 5-8, ... 1025-2048 times: entry k covers 2**(k-1) + 1 to 2**k uses.
REUSE_SHARE = (0.342, 0.144, 0.149, 0.138, 0.112, 0.068, 0.029, 0.010, 0.004, 0.002, 0.001, 0.001)
# The share of all indices that fall on rows used more often than that.
HOT_INDEX_SHARE = 0.25
HOT_USES = (2049, 32768)


def draw_uses(lookups: int, generator: torch.Generator) -> torch.Tensor:
    """Draw how often each unique row of a batch is used.

    Args:
        lookups: the number of lookups to distribute, >= 0.
        generator: a CPU generator.

    Returns:
        int64 [unique rows], every entry >= 1, the sum equal to ``lookups``.
    """
    parts = [torch.zeros(0, dtype=torch.int64)]
    hot = int(lookups * HOT_INDEX_SHARE)
    if hot >= HOT_USES[0]:
        parts.append(_draw_until(hot, _log_uniform, generator))
    else:
        hot = 0
    parts.append(_draw_until(lookups - hot, _histogram, generator))
    return torch.cat(parts)


def draw_ids(rows: int, lookups: int, generator: torch.Generator) -> torch.Tensor:
    """Draw one feature's ids in random order.

    Args:
        rows: rows of the table, >= 1.
        lookups: the number of ids.
        generator: a CPU generator.

    Returns:
        int64 [lookups], each in [0, rows). A table with fewer rows than the histogram asks for is used whole: the rows that exceed
        it are folded onto the others.
    """
    uses = draw_uses(lookups, generator)
    if len(uses) <= rows:
        # A random injection of the unique rows into the table, without a permutation of 40 million rows.
        unique = torch.randperm(len(uses), generator=generator) * (rows // max(len(uses), 1))
        unique += torch.randint(rows, (1,), generator=generator)
        unique %= rows
    else:
        unique = torch.randperm(len(uses), generator=generator) % rows
    ids = torch.repeat_interleave(unique, uses)
    return ids[torch.randperm(lookups, generator=generator)]


def _draw_until(total: int, draw: _Draw, generator: torch.Generator) -> torch.Tensor:
    """Repeat ``draw`` until the sum reaches ``total``, and cut the last entry to make it exact."""
    uses = torch.zeros(0, dtype=torch.int64)
    while int(uses.sum()) < total:
        uses = torch.cat([uses, draw(max(total // 8, 16), generator)])
    ends = uses.cumsum(0)
    kept = int((ends < total).sum()) + 1 if total else 0
    uses = uses[:kept]
    if total:
        uses[-1] -= ends[kept - 1] - total
    return uses


def _log_uniform(count: int, generator: torch.Generator) -> torch.Tensor:
    low, high = (torch.tensor(float(bound)).log() for bound in HOT_USES)
    return (low + (high - low) * torch.rand(count, generator=generator)).exp().to(torch.int64)


def _histogram(count: int, generator: torch.Generator) -> torch.Tensor:
    share = torch.tensor(REUSE_SHARE)
    entry = torch.multinomial(share, count, replacement=True, generator=generator)
    high = 2**entry
    low = torch.where(entry == 0, 1, high // 2 + 1)
    # Log-uniform inside an entry: counts fall off inside it as they do from one entry to the next.
    spread = (high.double() + 1) / low
    return (low * spread ** torch.rand(count, generator=generator, dtype=torch.float64)).to(
        torch.int64
    )
