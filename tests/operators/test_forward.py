"""The CPU operator against the float64 oracle: every dtype, every kind of argument, odd shapes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tbe_aot
from tbe_aot._rules import dtype_name
from tests.operators.support import (
    INDEX_DTYPES,
    OUTPUT_DTYPES,
    WEIGHT_DTYPES,
    Lookup,
    make_lookup,
    make_tables,
)

BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_every_dtype(dtype, output_dtype, index_dtype, weighted, pooling):
    lookup = make_lookup(
        [8, 5, 32],
        [10, 7, 20],
        [3, 0, 1, 2, 9, 4],
        dtype=dtype,
        index_dtype=index_dtype,
        weighted=weighted,
        pruned=0.2,
    )
    lookup.verify(pooling, output_dtype)


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("bucket", BUCKETS)
def test_every_bucket(bucket, dtype):
    dims = [bucket, bucket // 2 + 1]
    make_lookup(dims, [6, 6], [3, 1, 2, 4], dtype=dtype).verify(output_dtype=dtype)


@pytest.mark.parametrize("sample_dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_per_sample_weights_of_any_floating_dtype(sample_dtype):
    lookup = make_lookup([8], [10], [3, 4], weighted=True)
    assert lookup.per_sample_weights is not None
    lookup.with_(per_sample_weights=lookup.per_sample_weights.to(sample_dtype)).verify()


def every_other(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, with a stride of 2."""
    spread = torch.full((2 * tensor.numel(),), 99, dtype=tensor.dtype)
    spread[::2] = tensor
    return spread[::2]


def test_strided_inputs_give_what_contiguous_ones_do():
    lookup = make_lookup([8, 3], [10, 10], [3, 1, 2, 5], weighted=True)
    assert lookup.per_sample_weights is not None
    strided = lookup.with_(
        indices=every_other(lookup.indices),
        offsets=every_other(lookup.offsets),
        per_sample_weights=every_other(lookup.per_sample_weights),
    )
    assert not strided.indices.is_contiguous()
    assert torch.equal(strided.forward(), lookup.forward())


def test_weights_at_an_odd_address():
    lookup = make_lookup([8], [10], [3, 4], dtype=torch.float16)
    storage = torch.empty(lookup.weights.numel() + 1, dtype=torch.float16)
    storage[1:] = lookup.weights
    assert torch.equal(lookup.with_(weights=storage[1:]).forward(), lookup.forward())


@pytest.mark.parametrize("output_dtype", [torch.float16, torch.bfloat16])
def test_the_output_is_rounded_once(output_dtype):
    # 1 + 2**-11 (fp16) or 1 + 2**-9 (bf16) is half way between two outputs; what is added is lost in fp32, and would
    # be lost in a first rounding to it: only rounding the float64 sum itself goes up.
    step = torch.finfo(output_dtype).eps
    weights = torch.tensor([1.0, step / 2, 2.0**-40])
    metadata = tbe_aot.make_features([tbe_aot.TableSpec("t", 3, 1)])
    rows = torch.zeros(metadata.weights_numel)
    rows[:: metadata.row_pitches[0]] = weights
    out = torch.ops.tbe_aot.forward(
        rows,
        metadata.features,
        metadata.layout,
        torch.tensor([0, 1, 2]),
        torch.tensor([0, 3]),
        None,
        "sum",
        dtype_name(output_dtype),
    )
    assert out.item() == 1 + step


def test_a_result_beyond_the_output_dtype_is_infinite():
    lookup = make_lookup([4], [2], [1, 1])
    lookup.tables[0].fill_(1e30)
    assert torch.isinf(lookup.forward(output_dtype=torch.float16)).all()
    assert torch.isinf(-lookup.forward(output_dtype=torch.float16)).all()


def test_nan_and_infinite_rows_stay_so():
    lookup = make_lookup([4], [2], [1])
    lookup.tables[0].copy_(torch.tensor([[1.0, torch.nan, torch.inf, -torch.inf]] * 2))
    for output_dtype in OUTPUT_DTYPES:
        out = lookup.forward(output_dtype=output_dtype)[0]
        assert out[0] == 1
        assert torch.isnan(out[1])
        assert out[2] == torch.inf
        assert out[3] == -torch.inf


def test_many_bags_on_many_threads():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 3, (4 * 3000,), generator=generator).tolist()
    lookup = make_lookup([16, 4, 64, 16], [100, 50, 10, 30], lengths)
    assert torch.equal(lookup.forward(), lookup.forward())
    one = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single = lookup.forward()
    finally:
        torch.set_num_threads(one)
    assert torch.equal(single, lookup.forward())
    bags = lookup.offsets.tolist()
    pooled = []
    for t, table in enumerate(lookup.tables):
        start, end = bags[3000 * t], bags[3000 * (t + 1)]
        starts = lookup.offsets[3000 * t : 3000 * (t + 1)] - start
        indices = lookup.indices[start:end]
        pooled.append(torch.nn.functional.embedding_bag(indices, table, starts, mode="sum"))
    reference = torch.cat(pooled, dim=1)
    torch.testing.assert_close(lookup.forward(), reference)


@st.composite
def lookups(draw: st.DrawFn) -> tuple[Lookup, str, torch.dtype]:
    """Any lookup that the operator accepts, small."""
    tables = draw(st.integers(1, 3))
    dims = draw(st.lists(st.integers(1, 40), min_size=tables, max_size=tables))
    rows = draw(st.lists(st.integers(1, 8), min_size=tables, max_size=tables))
    features = draw(st.lists(st.integers(0, tables - 1), min_size=1, max_size=4))
    vbe = draw(st.booleans())
    batch_sizes = None
    if vbe:
        ranks = draw(st.integers(1, 3))
        batch_sizes = [[draw(st.integers(0, 2)) for _ in range(ranks)] for _ in features]
        bags = sum(map(sum, batch_sizes))
    else:
        bags = draw(st.integers(0, 4)) * len(features)
    lookup = make_lookup(
        dims,
        rows,
        [draw(st.integers(0, 5)) for _ in range(bags)],
        feature_tables=features,
        dtype=draw(st.sampled_from(WEIGHT_DTYPES)),
        index_dtype=draw(st.sampled_from(INDEX_DTYPES)),
        offset_dtype=draw(st.sampled_from(INDEX_DTYPES)),
        weighted=draw(st.booleans()),
        batch_sizes=batch_sizes,
        pruned=draw(st.sampled_from([0.0, 0.3])),
        seed=draw(st.integers(0, 1000)),
    )
    return lookup, draw(st.sampled_from(["sum", "mean"])), draw(st.sampled_from(OUTPUT_DTYPES))


@settings(max_examples=150, deadline=None)
@given(lookups())
def test_any_lookup(case):
    lookup, pooling, output_dtype = case
    lookup.verify(pooling, output_dtype)


def test_an_index_out_of_bounds_is_an_error_on_the_cpu():
    lookup = make_lookup([4, 4], [5, 5], [1, 1, 1, 1])
    for bad in (5, -2):
        indices = lookup.indices.clone()
        indices[3] = bad
        with pytest.raises(RuntimeError, match=rf"{bad} at position 3 \(feature 1, bag 1\)"):
            lookup.with_(indices=indices).forward()


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize(
    "offsets", [[0, 3, 2, 3, 4], [-1, 1, 2, 3, 4], [0, 1, 2, 3, 9], [0, 1, 2**32 + 2, 3, 4]]
)
def test_offsets_out_of_bounds_are_an_error_on_the_cpu(offsets, index_dtype):
    lookup = make_lookup([4, 4], [5, 5], [1, 1, 1, 1], index_dtype=index_dtype)
    with pytest.raises(RuntimeError, match="offsets has"):
        lookup.with_(offsets=torch.tensor(offsets)).forward()


def test_metadata_that_does_not_fit_the_weights_is_an_error_on_the_cpu():
    lookup = make_lookup([4], [5], [1])
    features = lookup.metadata.features.clone()
    features[0, 4] = 6
    args = list(lookup.arguments())
    args[1] = features
    with pytest.raises(RuntimeError, match="feature 0 has 6 rows"):
        torch.ops.tbe_aot.forward(*args)
    features = lookup.metadata.features.clone()
    features[0, 0] = 1
    args[1] = features
    with pytest.raises(
        RuntimeError, match="features row 0 has position 1, expected each of 0 to 0"
    ):
        torch.ops.tbe_aot.forward(*args)


HUGE = (-(2**63), -1, 2**31, 2**60, 2**61, 2**62, 2**63 - 8, 2**63 - 1)


# Features: position, weight_offset, row_pitch, dim, rows, output_column.
@pytest.mark.parametrize("column", range(6))
def test_metadata_of_any_size_is_an_error_on_the_cpu(column):
    lookup = make_lookup([4, 8], [5, 7], [1, 2, 0, 1])
    args = list(lookup.arguments())
    for value in HUGE:
        args[1] = lookup.metadata.features.clone()
        args[1][0, column] = value
        with pytest.raises(RuntimeError, match="tbe_aot::forward: features"):
            torch.ops.tbe_aot.forward(*args)


def test_rows_that_wrap_around_are_an_error_on_the_cpu():
    lookup = make_lookup([4], [5], [1])
    args = list(lookup.arguments())
    args[1] = lookup.metadata.features.clone()
    args[1][0, 4] = 2**62 + 1  # times the pitch of 4 elements: 4 in 64 bits
    args[3] = torch.tensor([2**40])
    with pytest.raises(RuntimeError, match="feature 0 has 4611686018427387905 rows"):
        torch.ops.tbe_aot.forward(*args)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (2, 13, "layout says 13 columns, features has 12"),
        (2, 11, "not within 84 weights, or not columns 4 on of 11"),
        (6, 7, "layout puts feature 1 of 8 elements into bucket 7"),
    ],
)
def test_a_layout_of_other_features_is_an_error_on_the_cpu(position, value, message):
    lookup = make_lookup([4, 8], [7, 7], [1, 2, 0, 1])
    args = list(lookup.arguments())
    args[2] = list(lookup.metadata.layout)
    args[2][position] = value
    with pytest.raises(RuntimeError, match=message):
        torch.ops.tbe_aot.forward(*args)


def test_output_columns_that_overlap_are_an_error_on_the_cpu():
    lookup = make_lookup([4, 4], [5, 7], [1, 2, 0, 1])
    args = list(lookup.arguments())
    args[1] = lookup.metadata.features.clone()
    args[1][1, 5] = 0
    with pytest.raises(RuntimeError, match=r"output column 0: .* not columns 4 on of 8"):
        torch.ops.tbe_aot.forward(*args)


def test_metadata_of_another_weight_dtype_is_an_error_on_the_cpu():
    lookup = make_lookup([4], [5], [1])
    with pytest.raises(RuntimeError, match=r"feature 0 is aligned, but .* expected multiples of 8"):
        lookup.with_(weights=lookup.weights.half()).forward()


def test_a_feature_with_more_bags_than_said_is_an_error_on_the_cpu():
    args = list(make_lookup([4, 8], [5, 7], [1, 2, 0, 1], batch_sizes=[[1], [3]]).arguments())
    args[10] = 2
    with pytest.raises(RuntimeError, match="vbe_max_batch is 2, too few for the 3 bags"):
        torch.ops.tbe_aot.forward(*args)


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_subnormal_rows_count_on_every_thread(dtype):
    rows, dim = 4096, 64
    weights, metadata, _ = make_tables([tbe_aot.TableSpec("a", rows, dim)], dtype=dtype)
    weights.fill_(torch.finfo(dtype).smallest_normal / 4)
    args = (weights, metadata.features, metadata.layout, torch.arange(rows), torch.arange(rows + 1))
    torch.set_flush_denormal(True)
    try:
        pooled = torch.ops.tbe_aot.forward(*args)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(pooled, weights.view(rows, dim).float())


def test_vbe_metadata_that_does_not_fit_is_an_error_on_the_cpu():
    lookup = make_lookup([4, 8], [5, 5], [1, 1, 1], batch_sizes=[[1], [2]])
    args = list(lookup.arguments())
    outside = args[9].clone()
    outside[2] = 17
    with pytest.raises(RuntimeError, match="vbe_output_offsets puts feature 1, bag 1 outside"):
        torch.ops.tbe_aot.forward(*args[:9], outside, *args[10:])
    falling = torch.tensor([0, 4, 3])
    with pytest.raises(RuntimeError, match="vbe_bag_offsets must rise from 0"):
        torch.ops.tbe_aot.forward(*args[:8], falling, *args[9:])


def test_padding_is_never_read():
    # make_tables fills it with NaN.
    for dtype in WEIGHT_DTYPES:
        lookup = make_lookup([3, 9], [4, 4], [2, 2], dtype=dtype)
        assert torch.isnan(lookup.weights).any()
        assert not torch.isnan(lookup.forward()).any()


def test_determinism():
    lookup = make_lookup([8], [20], [50, 60], weighted=True, dtype=torch.float16)
    first = lookup.forward()
    assert all(torch.equal(lookup.forward(), first) for _ in range(5))


def test_against_embedding_bag_means():
    weights, metadata, (table,) = make_tables([tbe_aot.TableSpec("t", 30, 12)])
    indices = torch.randint(0, 30, (40,))
    offsets = torch.tensor([0, 7, 7, 21, 40])
    out = torch.ops.tbe_aot.forward(
        weights, metadata.features, metadata.layout, indices, offsets, None, "mean"
    )
    reference = torch.nn.functional.embedding_bag(indices, table, offsets[:-1], mode="mean")
    torch.testing.assert_close(out, reference)
