"""Sums of gradients of small tables, from the source that ships, on the host, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simt.small_tables import (
    Gradient,
    Lookups,
    SmallTable,
    draw_lookups,
    draw_table,
    spoil,
    sum_gradients,
)

ROWS = 64


def draw_gradient(batch: int, dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, dim, generator=torch.Generator().manual_seed(seed))


def expected_sums(lookups: Lookups, given: Gradient) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 (sums, sums of magnitudes) of each row, [rows, chunks, dim]."""
    gradient = given.gradient.double() / (1.0 if given.scale is None else given.scale)
    gradient = gradient.clamp(-given.clip, given.clip)
    if given.mean:
        gradient = gradient / lookups.offsets.long().diff().clamp(min=1)[:, None]
    counts = lookups.counts(ROWS).double()
    chunks = zip(counts.split(given.chunk_bags), gradient.split(given.chunk_bags), strict=True)
    both = [(c.T @ g, c.T @ g.abs()) for c, g in chunks]
    return torch.stack([s for s, _ in both], 1), torch.stack([m for _, m in both], 1)


def check(
    table: SmallTable, lookups: Lookups, gradient: Gradient, tolerance: float = 3e-7
) -> torch.Tensor:
    """Sums of every chunk; the error of each is at most some roundings of the sum of its magnitudes."""
    partials, used = sum_gradients(table, lookups, gradient)
    expected, magnitude = expected_sums(lookups, gradient)
    assert ((partials - expected).abs() <= tolerance * magnitude).all()
    present = [c.sum(0) > 0 for c in lookups.counts(ROWS).split(gradient.chunk_bags)]
    assert torch.equal(used, torch.stack(present, 1).int())
    return partials


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("index_width", [32, 64])
@pytest.mark.parametrize("dim", [64, 65, 100, 127, 128])
def test_dims(dim: int, index_width: int, *, mean: bool) -> None:
    lookups = draw_lookups([64, 0, 1, 100, 33, 7, 130] * 3, ROWS, index_width=index_width)
    check(draw_table(ROWS, dim), lookups, Gradient(draw_gradient(21, dim), mean))


@pytest.mark.parametrize("chunk_bags", [64, 128])
@pytest.mark.parametrize("batch", [1, 63, 64, 65, 128, 200])
def test_batches_and_chunks(batch: int, chunk_bags: int) -> None:
    lookups = draw_lookups([b % 70 for b in range(batch)], ROWS)
    gradient = Gradient(draw_gradient(batch, 64), chunk_bags=chunk_bags)
    check(draw_table(ROWS, 64), lookups, gradient)


GRADIENT_DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", GRADIENT_DTYPES)
def test_a_gradient_that_starts_between_pairs(dtype: torch.dtype) -> None:
    lookups = draw_lookups([80] * 5, ROWS)
    gradient = torch.cat([torch.zeros(1), draw_gradient(5, 64).flatten()]).to(dtype)[1:].view(5, 64)
    check(draw_table(ROWS, 64), lookups, Gradient(gradient))


@pytest.mark.parametrize("dtype", GRADIENT_DTYPES[1:])
@pytest.mark.parametrize("dim", [64, 66, 67, 128])
def test_half_gradients_are_widened(dim: int, dtype: torch.dtype) -> None:
    lookups = draw_lookups([64, 0, 1, 100, 33, 7, 130] * 3, ROWS)
    gradient = draw_gradient(21, dim).to(dtype)
    gradient[3, 5], gradient[5, 7] = 1e-7, -1e-6  # Not normal in fp16.
    given = Gradient(gradient, clip=0.5, scale=2.0)
    sums = check(draw_table(ROWS, dim), lookups, given)
    wide = replace(given, gradient=gradient.float())
    assert torch.equal(sums, sum_gradients(draw_table(ROWS, dim), lookups, wide)[0])


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", GRADIENT_DTYPES[1:])
def test_a_half_gradient_that_is_not_finite(value: float, dtype: torch.dtype) -> None:
    lookups = draw_lookups([80] * 5, ROWS)
    gradient = draw_gradient(5, 64).to(dtype)
    gradient[2, 9] = value
    sums, _ = sum_gradients(draw_table(ROWS, 64), lookups, Gradient(gradient))
    wide, _ = sum_gradients(draw_table(ROWS, 64), lookups, Gradient(gradient.float()))
    assert torch.equal(sums.view(torch.int32), wide.view(torch.int32))
    assert not sums[:, :, 9].isfinite().all()


@pytest.mark.parametrize("length", [127, 128, 129, 255, 256, 257, 16384, 65535, 65536, 70000])
def test_the_same_row_over_and_over(length: int) -> None:
    lookups = Lookups(torch.full((length + 2,), 5), torch.tensor([0, 2, length + 2]))
    check(draw_table(ROWS, 64), lookups, Gradient(draw_gradient(2, 64)))


def test_one_bag_gives_its_gradient_exactly() -> None:
    # Three bf16 numbers hold every bit of an fp32 number, whatever its exponent.
    gradient = draw_gradient(1, 64) * 2.0 ** torch.arange(-60, 68, 2)
    partials = check(
        draw_table(ROWS, 64),
        Lookups(torch.tensor([3]), torch.tensor([0, 1])),
        Gradient(gradient),
        0,
    )
    assert torch.equal(partials[3, 0], gradient[0])


def test_a_small_gradient_beside_large_ones() -> None:
    gradient = draw_gradient(16, 64)
    gradient[3] *= 2.0**-60
    lookups = Lookups(torch.tensor([2 if b == 3 else 1 for b in range(16)]), torch.arange(17))
    check(draw_table(ROWS, 64), lookups, Gradient(gradient))


def test_clipped_scaled_and_mean() -> None:
    lookups = draw_lookups([70, 0, 90, 300], ROWS)
    gradient = Gradient(draw_gradient(4, 100) * 8, mean=True, clip=0.25, scale=-16.0)
    check(draw_table(ROWS, 100), lookups, gradient)
    # Infinity is clipped as every other number.
    gradient.gradient[1:3, 5] = torch.inf
    partials = check(draw_table(ROWS, 100), lookups, gradient)
    assert partials.isfinite().all()


def test_gradients_are_unscaled_before_they_are_summed() -> None:
    # The sum of what is still scaled would be infinite.
    lookups = Lookups(torch.full((90,), 3), torch.arange(91))
    gradient = Gradient(torch.full((90, 64), 2.0**127), scale=2.0**16, chunk_bags=128)
    partials = check(draw_table(ROWS, 64), lookups, gradient)
    assert (partials[3] == 90 * 2.0**111).all()


# 3.4e38 is finite but has no bf16 neighbour above it.
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 3.4e38])
def test_a_gradient_that_is_not_finite_stays_in_its_rows(value: float) -> None:
    table, lookups = draw_table(ROWS, 100), draw_lookups([60] * 90, ROWS, pruned=0)
    lookups.indices[lookups.indices == 9] = 8
    lookups.indices[60 * 20 + 7] = 9  # Once, in bag 20, as many other rows are.
    gradient = draw_gradient(90, 100)
    gradient[20, 50] = value
    in_bag = lookups.counts(ROWS)[20] > 0
    partials, used = sum_gradients(table, lookups, Gradient(gradient, chunk_bags=128))
    clean = gradient.clone()
    clean[20, 50] = 0
    expected, magnitude = expected_sums(lookups, Gradient(clean, chunk_bags=128))
    affected = torch.zeros_like(partials, dtype=torch.bool)
    affected[:, 0, 50] = in_bag
    assert ((partials - expected).abs() <= 3e-7 * magnitude)[~affected].all()
    assert torch.allclose(partials[9, 0, 50], torch.tensor(value), equal_nan=True)
    assert not (partials[affected].abs() <= 1e38).any()
    assert (used == 1).all()


def test_the_error_is_no_worse_than_that_of_adding_in_fp32() -> None:
    # Gradients of one sign: an error that truncation made would add up.
    lookups = draw_lookups([100] * 320, ROWS)
    table, gradient = draw_table(ROWS, 64), Gradient(draw_gradient(320, 64).abs())
    partials, _ = sum_gradients(table, lookups, replace(gradient, chunk_bags=320))
    expected, _ = expected_sums(lookups, replace(gradient, chunk_bags=320))
    one_by_one = torch.zeros(ROWS, 64)
    bags = torch.repeat_interleave(torch.arange(320), 100)
    for row in range(ROWS):
        of_row = gradient.gradient[bags[lookups.indices == row]]
        for chunk in of_row.split(128):
            one_by_one[row] += chunk.cumsum(0, dtype=torch.float32)[-1]
    ours = (partials[:, 0] - expected[:, 0]).abs().max()
    assert ours <= (one_by_one - expected[:, 0]).abs().max()


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_bags(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=80))
    rows = data.draw(st.integers(1, ROWS))
    dim = data.draw(st.sampled_from([64, 71, 128]))
    seed = data.draw(st.integers(0, 1000))
    lookups = draw_lookups(
        lengths, rows, index_width=data.draw(st.sampled_from([32, 64])), seed=seed
    )
    gradient = Gradient(draw_gradient(len(lengths), dim, seed), data.draw(st.booleans()))
    check(draw_table(rows, dim), lookups, gradient)


@pytest.mark.parametrize("share", [0.001, 0.3, 1.0])
@pytest.mark.parametrize("index_width", [32, 64])
@pytest.mark.parametrize(("rows", "dim"), [(1, 64), (40, 100), (ROWS, 128)])
def test_what_is_out_of_bounds_counts_as_row_0(
    rows: int, dim: int, index_width: int, share: float
) -> None:
    lengths = [64, 0, 1, 100, 300, 7, 130] * 10
    spoiled, repaired = spoil(draw_lookups(lengths, rows, index_width=index_width), rows, share)
    table, gradient = draw_table(rows, dim), Gradient(draw_gradient(70, dim))
    ours, expected = (sum_gradients(table, lookups, gradient) for lookups in (spoiled, repaired))
    assert torch.equal(ours[0], expected[0])
    assert torch.equal(ours[1], expected[1])


def test_a_table_without_rows_has_no_row_0() -> None:
    lookups = Lookups(torch.tensor([0, -1, 5, 2**40]), torch.tensor([0, 2, 4]))
    _, used = sum_gradients(draw_table(0, 64), lookups, Gradient(draw_gradient(2, 64)))
    assert (used == 0).all()
