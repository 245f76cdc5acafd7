"""The radix sort's kernel, from the source that ships, on the host."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simt.sorting import KEY_DTYPES, run_pass, sort_pass

SIZES = ("small", "large")
WIDTHS = (32, 64)


def by_digit(keys: torch.Tensor, shift: int, digits: int) -> torch.Tensor:
    """The stable order of one digit."""
    return torch.sort((keys.long() >> shift) & (digits - 1), stable=True).indices


def check_pass(keys: torch.Tensor, shift: int, size: str, side_by_side: int = 3) -> None:
    variant = sort_pass(32 if keys.dtype == torch.int32 else 64, size)
    order = by_digit(keys, shift, variant.digits)
    values = torch.randperm(keys.numel()).int()
    sorted_keys, sorted_values, histogram = run_pass(
        variant, keys, values, shift, side_by_side=side_by_side
    )
    assert torch.equal(sorted_keys, keys[order])
    assert torch.equal(sorted_values, values[order])
    following = (keys.long() >> shift >> variant.digit_bits) & (variant.digits - 1)
    assert torch.equal(histogram, torch.bincount(following, minlength=variant.digits).int())
    _, counted, _ = run_pass(variant, keys, None, shift, side_by_side=side_by_side)
    assert torch.equal(counted, order.int())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("width", WIDTHS)
def test_keys_around_the_edges_of_tiles(width: int, size: str) -> None:
    torch.manual_seed(0)
    tile = sort_pass(width, size).tile
    for lookups in (
        1,
        2,
        31,
        32,
        33,
        255,
        256,
        257,
        tile - 1,
        tile,
        tile + 1,
        2 * tile,
        3 * tile + 5,
    ):
        check_pass(torch.randint(0, 1 << 20, (lookups,), dtype=KEY_DTYPES[width]), 8, size)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "kind", ["equal", "largest", "ascending", "descending", "two", "last digit"]
)
def test_keys_of_every_kind(width: int, kind: str) -> None:
    lookups = 5000
    counting = torch.arange(lookups, dtype=KEY_DTYPES[width])
    keys = {
        "equal": torch.full_like(counting, 77),
        "largest": torch.full_like(counting, (1 << (width - 1)) - 1),
        "ascending": counting,
        "descending": counting.flip(0),
        "two": counting % 2 * 255,
        "last digit": counting % 3 + 253,
    }[kind]
    check_pass(keys, 0, "large")


@pytest.mark.parametrize("side_by_side", [1, 2, 8])
def test_blocks_find_what_others_have_published_in_whatever_order(side_by_side: int) -> None:
    torch.manual_seed(side_by_side)
    check_pass(
        torch.randint(0, 256, (12 * 1024 + 77,), dtype=torch.int32), 0, "small", side_by_side
    )


@settings(max_examples=15, deadline=None)
@given(
    lookups=st.integers(1, 4500),
    largest=st.sampled_from([1, 2, 255, 256, 65535, 1 << 30]),
    width=st.sampled_from(WIDTHS),
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 1000),
)
def test_passes_in_a_row_sort(lookups: int, largest: int, width: int, size: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randint(0, largest, (lookups,), generator=generator, dtype=KEY_DTYPES[width])
    keys <<= width - 32  # The upper digits of wide keys too.
    variant = sort_pass(width, size)
    moved, values = keys, None
    for shift in range(0, width, variant.digit_bits):
        moved, values, _ = run_pass(variant, moved, values, shift)
    order = torch.sort(keys, stable=True)
    assert torch.equal(moved, order.values)
    assert values is not None
    assert torch.equal(values, order.indices.int())
