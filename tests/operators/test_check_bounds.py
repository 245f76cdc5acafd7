"""The CPU bounds check against the oracle, and what each mode does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tbe_aot
from tests import oracle
from tests.operators.support import INDEX_DTYPES, make_lookup


def run(lookup, indices, offsets, mode="warning", count=None):
    bag_offsets = None
    if lookup.batch_sizes is not None:
        dims = lookup.metadata.feature_dims
        bag_offsets = tbe_aot.vbe_layout(lookup.batch_sizes, dims, torch.device("cpu"))[0]
    return torch.ops.tbe_aot.check_bounds(
        indices,
        offsets,
        lookup.metadata.features,
        lookup.metadata.layout,
        mode,
        count,
        bag_offsets,
    )


@st.composite
def damaged(draw: st.DrawFn):
    """A lookup with some indices and offsets replaced by anything."""
    features = draw(st.integers(1, 3))
    rows = draw(st.lists(st.integers(0, 6), min_size=features, max_size=features))
    batch_sizes = None
    if draw(st.booleans()):
        batch_sizes = [[draw(st.integers(0, 3)) for _ in range(2)] for _ in range(features)]
        bags_per_feature = [sum(sizes) for sizes in batch_sizes]
    else:
        bags_per_feature = [draw(st.integers(0, 3))] * features
    lengths = [draw(st.integers(0, 4)) for _ in range(sum(bags_per_feature))]
    dtype = draw(st.sampled_from(INDEX_DTYPES))
    lookup = make_lookup([4] * features, rows, lengths, index_dtype=dtype, batch_sizes=batch_sizes)
    indices, offsets = lookup.indices.clone(), lookup.offsets.clone()
    for _ in range(draw(st.integers(0, 4)) if indices.numel() else 0):
        indices[draw(st.integers(0, indices.numel() - 1))] = draw(st.integers(-9, 9))
    for _ in range(draw(st.integers(0, 2))):
        offsets[draw(st.integers(0, offsets.numel() - 1))] = draw(st.integers(-20, 40))
    return lookup, rows, bags_per_feature, indices, offsets


@settings(max_examples=200, deadline=None)
@given(damaged())
def test_any_damage_is_repaired_as_the_oracle_says(case):
    lookup, rows, bags_per_feature, indices, offsets = case
    expected = oracle.check_bounds(indices, offsets, rows, bags_per_feature)
    before = indices.clone(), offsets.clone()
    count = torch.tensor([7])
    checked_indices, checked_offsets = run(lookup, indices, offsets, "warning", count)
    assert torch.equal(checked_indices, expected.indices)
    assert torch.equal(checked_offsets, expected.offsets)
    assert count.item() == 7 + expected.invalid_indices
    assert torch.equal(indices, before[0])
    assert torch.equal(offsets, before[1])
    ignored = run(lookup, indices, offsets, "ignore", count)
    assert torch.equal(ignored[0], expected.indices)
    assert count.item() == 7 + expected.invalid_indices
    if expected.invalid_indices or expected.invalid_offsets:
        with pytest.raises(RuntimeError, match=r"tbe_aot::check_bounds: (index|offsets)"):
            run(lookup, indices, offsets, "fatal")
    else:
        assert torch.equal(run(lookup, indices, offsets, "fatal")[0], indices)


def test_none_copies_without_looking():
    lookup = make_lookup([4], [10], [2, 1])
    indices = torch.tensor([100, -5, 3])
    offsets = torch.tensor([9, -1, 3], dtype=torch.int32)
    checked = run(lookup, indices, offsets, "none")
    assert torch.equal(checked[0], indices)
    assert torch.equal(checked[1], offsets.long())
    assert checked[0].data_ptr() != indices.data_ptr()
    same = run(lookup, indices, offsets.long(), "none")
    assert same[1].dtype == torch.int64


@pytest.mark.parametrize("mode", ["ignore", "warning"])
@pytest.mark.parametrize(
    ("offsets", "repaired"),
    [
        ([0, 1, 2**32 + 2, 3, 4], [0, 1, 4, 4, 4]),
        ([2**63 - 1] * 5, [4] * 5),
        ([-(2**63), -(2**32), 2, 3, 4], [0, 0, 2, 3, 4]),
    ],
)
def test_offsets_beyond_int32_are_bad_with_int32_indices(offsets, repaired, mode):
    lookup = make_lookup([4, 4], [5, 5], [1, 1, 1, 1], index_dtype=torch.int32)
    indices, checked = run(lookup, lookup.indices, torch.tensor(offsets), mode)
    assert checked.tolist() == repaired
    assert torch.equal(indices, lookup.indices)
    assert indices.dtype == checked.dtype == torch.int32
    with pytest.raises(RuntimeError, match=r"offsets\[\d\] is -?\d{10,}, expected"):
        run(lookup, lookup.indices, torch.tensor(offsets), "fatal")


def test_strided_inputs():
    lookup = make_lookup([4], [10], [2, 1])
    indices = torch.tensor([[1, 0], [20, 0], [3, 0]])[:, 0]
    assert not indices.is_contiguous()
    checked, _ = run(lookup, indices, lookup.offsets)
    assert checked.tolist() == [1, 0, 3]
    assert checked.is_contiguous()


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 1, 0, 3, 4], r"offsets\[2\] is 0, expected from 1 to 4 \(feature 1, bag 0\)"),
        ([0, 1, 2, 3, 9], r"offsets\[4\] is 9, expected 4, the number of indices"),
        ([-3, 1, 2, 3, 4], r"offsets\[0\] is -3, expected from 0 to 4 \(feature 0, bag 0\)"),
    ],
)
def test_fatal_names_the_first_bad_offset(offsets, message):
    lookup = make_lookup([4, 4], [10, 10], [1, 1, 1, 1])
    with pytest.raises(RuntimeError, match=message):
        run(lookup, lookup.indices, torch.tensor(offsets), "fatal")


def test_fatal_names_the_first_bad_offset_without_bags():
    lookup = make_lookup([4], [10], [])
    with pytest.raises(RuntimeError, match=r"offsets\[0\] is 5, expected 0, the number of indices"):
        run(lookup, lookup.indices, torch.tensor([5]), "fatal")


def test_fatal_names_the_first_bad_index_of_a_variable_batch():
    lookup = make_lookup([4, 4], [10, 10], [1, 2, 1, 1], batch_sizes=[[1, 0], [1, 2]])
    indices = torch.tensor([1, 2, 3, 10, 11])
    with pytest.raises(RuntimeError, match=r"index 10 at position 3 \(feature 1, bag 1\)"):
        run(lookup, indices, lookup.offsets, "fatal")


def test_fatal_counts_before_it_raises():
    lookup = make_lookup([4], [10], [3])
    count = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(RuntimeError):
        run(lookup, torch.tensor([1, 10, 11]), lookup.offsets, "fatal", count)
    assert count.item() == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_calls_on_two_threads_share_a_counter():
    # TorchScript's threads do not wait for Python's lock.
    script = torch.jit.CompilationUnit(
        """
def calls(
    indices: Tensor, offsets: Tensor, features: Tensor, layout: List[int], count: Tensor, n: int
):
    for _ in range(n):
        torch.ops.tbe_aot.check_bounds(indices, offsets, features, layout, "warning", count)

def calls_on_two_threads(
    indices: Tensor, offsets: Tensor, features: Tensor, layout: List[int], count: Tensor, n: int
):
    other = torch.jit.fork(calls, indices, offsets, features, layout, count, n)
    calls(indices, offsets, features, layout, count, n)
    torch.jit.wait(other)
"""
    )
    metadata = make_lookup([4], [10], [3]).metadata
    indices, offsets = torch.tensor([1, 10, -5]), torch.tensor([0, 3])
    count = torch.zeros(1, dtype=torch.int64)
    script.calls_on_two_threads(
        indices, offsets, metadata.features, metadata.layout, count, 100_000
    )
    assert count.item() == 2 * 100_000 * 2


def test_many_lookups_on_many_threads():
    lookup = make_lookup([4, 4], [100, 10], [50_000, 20, 0, 200_000])
    indices = lookup.indices.clone()
    indices[::7] = 100
    count = torch.zeros(1, dtype=torch.int64)
    checked, _ = run(lookup, indices, lookup.offsets, "warning", count)
    assert count.item() == (indices == 100).sum()
    assert torch.equal(checked, torch.where(indices == 100, 0, indices))
