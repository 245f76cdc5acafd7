"""A lookup for each forward variant, at a shape that selects it."""

from __future__ import annotations

import torch

from tests.gpu import installed
from tests.gpu.support import DTYPES, Lookup, make_lookup, make_tables, unit

# Rows of the tables: small, so that float64 sums stay cheap, yet with more rows than any bag is long.
ROWS = (211, 97)
# Features 0 and 2 share a table; the output is in the caller's order whatever the tables' order is.
FEATURE_TABLES = (0, 1, 0)


def feature_dims(variant: installed.Variant, *, odd: bool) -> list[int]:
    """Two dims of the variant's bucket, about the widest and the narrowest.

    Odd ones make rows of the output that no vector can be stored to; the others, which only padded rows have, are
    multiples of 16 bytes.
    """
    buckets = installed.buckets()
    position = buckets.index(variant.bucket)
    narrowest = buckets[position - 1] + 1 if position else 1
    if odd:
        return [variant.bucket - 1, narrowest]
    step = unit(DTYPES[variant.weight_dtype])
    return [variant.bucket, -(-narrowest // step) * step]


def bag_lengths(variant: installed.Variant, bags: int, generator: torch.Generator) -> torch.Tensor:
    """Lengths whose mean makes the planner choose the variant's shape, empty bags among them."""
    least, below = installed.mean_lengths(variant)
    mean = least + 6 if below is None else (least + below) // 2
    lengths = torch.randint(0, 2 * mean + 1, (bags,), generator=generator)
    lengths[0] = 0
    lengths[1] = 1
    if variant.shape != "short":
        # Longer than any unroll factor.
        lengths[bags // 2] = 67
    assert least * bags <= lengths.sum()
    assert below is None or lengths.sum() < below * bags
    return lengths


def lookup_for(
    variant: installed.Variant, number: int, device: torch.device, *, odd: bool
) -> Lookup:
    """A lookup that the variant serves; every third one is VBE, -1 is among the indices of all."""
    generator = torch.Generator().manual_seed(number)
    dtype = DTYPES[variant.weight_dtype]
    tables = make_tables(
        ROWS,
        feature_dims(variant, odd=odd),
        dtype,
        device,
        seed=number,
        padding=None if variant.aligned else 0,
    )
    batch_sizes = None
    bags = len(FEATURE_TABLES) * (33 + number % 7)
    if number % 3 == 2:
        batch_sizes = [[19 + number % 5, 3], [0, 41], [23, 0]]
        bags = sum(map(sum, batch_sizes))
    return make_lookup(
        tables,
        FEATURE_TABLES,
        installed.buckets(),
        bag_lengths(variant, bags, generator),
        index_dtype=torch.int32 if variant.index_width == 32 else torch.int64,
        weighted=variant.weighted,
        batch_sizes=batch_sizes,
        pruned=0.05,
        seed=number,
    )
