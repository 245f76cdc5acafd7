"""The forward of small tables, from the source that ships, on the host, against the float64 oracle."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import oracle
from tests.simt.small_tables import (
    Lookups,
    SmallTable,
    checked_forward,
    draw_lookups,
    draw_table,
    forward,
    spoil,
)


def check(
    table: SmallTable, lookups: Lookups, *, mean: bool = False, row_limit: int = 64
) -> torch.Tensor:
    output = forward(table, lookups, mean=mean, row_limit=row_limit)
    expected, scale = oracle.forward(
        [oracle.Feature(table.table)],
        lookups.indices,
        lookups.offsets,
        None,
        "mean" if mean else "sum",
    )
    assert oracle.within_tolerance(output, expected, scale)
    return output


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("index_width", [32, 64])
@pytest.mark.parametrize("dim", [64, 65, 100, 127, 128])
def test_dims(dim: int, index_width: int, *, mean: bool) -> None:
    lengths = [64, 0, 1, 100, 33, 7, 130]
    check(draw_table(64, dim), draw_lookups(lengths, 64, index_width=index_width), mean=mean)


@pytest.mark.parametrize("output_dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [64, 66, 67, 128, 129, 256])
def test_half_outputs_are_rounded_once(
    dim: int, dtype: torch.dtype, output_dtype: torch.dtype
) -> None:
    table, lookups = draw_table(64, dim, dtype), draw_lookups([64, 0, 1, 100, 300], 64)
    output = forward(table, lookups, output_dtype=output_dtype)
    assert torch.equal(output, forward(table, lookups).to(output_dtype))


def test_half_outputs_of_large_sums_are_infinite() -> None:
    table = draw_table(2, 64)
    table.table[:] = torch.tensor([[60000.0], [-60000.0]])
    lookups = Lookups(torch.tensor([0, 0, 1, 1, 0, 1]), torch.tensor([0, 2, 4, 6]))
    output = forward(table, lookups, output_dtype=torch.float16)
    assert torch.equal(output[:, 0], torch.tensor([torch.inf, -torch.inf, 0]).half())


@pytest.mark.parametrize("rows", [1, 2, 63, 64])
def test_rows(rows: int) -> None:
    check(draw_table(rows, 64), draw_lookups([70] * 3, rows))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "dim"), [(256, 128), (65, 64), (64, 256), (200, 100)])
def test_beyond_64_rows_and_128_columns(rows: int, dim: int, dtype: torch.dtype) -> None:
    row_limit = 64 if rows <= 64 else 256
    lookups = draw_lookups([90, 300, 5], rows)
    check(draw_table(rows, dim, dtype), lookups, row_limit=row_limit)


@pytest.mark.parametrize("batch", [1, 15, 16, 17, 40])
def test_batches(batch: int) -> None:
    check(draw_table(64, 64), draw_lookups([batch + b for b in range(batch)], 64))


@pytest.mark.parametrize("mean", [False, True])
def test_every_length_around_what_a_warp_reads_at_once(*, mean: bool) -> None:
    lengths = [255, 256, 257, 258, 0, 31, 32, 33, 511, 512, 513, 700, 256, 384, 385, 1]
    check(draw_table(64, 64), draw_lookups(lengths, 64), mean=mean)


# More of a row than the weights' dtype has integers for, up to several digits.
@pytest.mark.parametrize("length", [127, 128, 129, 1023, 1024, 1025, 2049, 65535, 65536, 70001])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_same_row_over_and_over(length: int, dtype: torch.dtype) -> None:
    table = draw_table(64, 64, dtype)
    indices = torch.full((length + 3,), 5)
    indices[:3] = 7
    lookups = Lookups(indices, torch.tensor([0, 3, length + 3]))
    output = forward(table, lookups)
    expected = torch.stack([3 * table.table[7].double(), length * table.table[5].double()])
    assert ((output - expected).abs() <= 1e-6 * expected.abs()).all()


def test_every_lookup_pruned() -> None:
    lookups = Lookups(torch.full((300,), -1), torch.tensor([0, 300]))
    assert (check(draw_table(64, 64), lookups, mean=True) == 0).all()


def test_pruned_in_the_middle_counts_in_the_length() -> None:
    table = draw_table(4, 64)
    lookups = Lookups(torch.tensor([1, -1, 1, 3]), torch.tensor([0, 4]))
    output = check(table, lookups, mean=True)
    assert torch.allclose(output[0], (2 * table.table[1].float() + table.table[3].float()) / 4)


def test_torchrec_3730_widened_before_added() -> None:
    table = draw_table(2, 64)
    table.table[0], table.table[1] = 2048.0, 1.0
    output = check(table, Lookups(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 4])))
    assert (output == 2051).all()


# 0 times infinity is NaN: nothing of that may reach a bag that does not have the row.
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_row_that_is_not_finite_stays_in_its_bags(value: float, dtype: torch.dtype) -> None:
    table = draw_table(64, 100, dtype)
    table.table[9, 50] = value
    lookups = draw_lookups([80, 90, 70], 64, pruned=0)
    lookups.indices[lookups.indices == 9] = 8
    lookups.indices[100] = 9
    output = forward(table, lookups)
    expected = lookups.counts(64)[:, :, None] * table.table.double()
    expected = torch.where(lookups.counts(64)[:, :, None] == 0, 0, expected).sum(1)
    assert torch.allclose(output.double(), expected, rtol=1e-5, atol=1e-4, equal_nan=True)
    assert not output[1, 50].isfinite()
    assert output.isfinite().sum() == output.numel() - 1


def test_an_index_outside_the_table_reads_nothing_outside_it() -> None:
    # Around the table there are NaNs.
    lookups = Lookups(torch.tensor([1, 63, 64, 2**40, -9, 2]), torch.tensor([0, 6]))
    output = forward(draw_table(5, 64), lookups)
    assert output.isfinite().all()


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_bags(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=18))
    rows = data.draw(st.integers(1, 64))
    table = draw_table(rows, data.draw(st.sampled_from([64, 72, 128])))
    lookups = draw_lookups(
        lengths,
        rows,
        index_width=data.draw(st.sampled_from([32, 64])),
        seed=data.draw(st.integers(0, 1000)),
    )
    check(table, lookups, mean=data.draw(st.booleans()))


def test_equal_inputs_give_equal_bits() -> None:
    table, lookups = draw_table(64, 128), draw_lookups([100, 250, 300], 64)
    first = forward(table, lookups)
    assert all(torch.equal(first, forward(table, lookups)) for _ in range(3))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 1.0])
@pytest.mark.parametrize("index_width", [32, 64])
@pytest.mark.parametrize(("rows", "dim"), [(1, 64), (40, 100), (64, 128), (64, 256), (200, 64)])
def test_checked_indices(rows: int, dim: int, index_width: int, share: float) -> None:
    row_limit = 64 if rows <= 64 else 256
    lengths = [64, 0, 1, 100, 300, 7, 130] * 3
    given = draw_lookups(lengths, rows, index_width=index_width)
    spoiled, repaired = spoil(given, rows, share, seed=rows)
    table = draw_table(rows, dim)
    output, count, first = checked_forward(table, spoiled, row_limit=row_limit)
    # Counts are exact: to the bit what the repaired indices give.
    assert torch.equal(output, forward(table, repaired, row_limit=row_limit))
    bad = (spoiled.indices != repaired.indices).nonzero().flatten()
    assert count == len(bad)
    assert first == (bad[0] if count else given.indices.numel())


def test_checked_table_without_rows_prunes() -> None:
    lookups = Lookups(torch.tensor([0, -1, 5, 2**40]), torch.tensor([0, 2, 4]))
    output, count, first = checked_forward(draw_table(0, 64), lookups, mean=True)
    assert (output == 0).all()
    assert (count, first) == (3, 0)
