"""Public reports of what went wrong in such kernels, as tests of the forward on a CPU; named by project and issue."""

from __future__ import annotations

import pytest
import torch

import tbe_aot
from tbe_aot._rules import dtype_name
from tests import oracle
from tests.operators.support import (
    INDEX_DTYPES,
    OUTPUT_DTYPES,
    WEIGHT_DTYPES,
    make_lookup,
    make_tables,
)


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
def test_fbgemm_3877_elements_beyond_2_to_the_31(index_dtype):
    dim = 1024
    rows = 2**31 // dim + 1
    spec = tbe_aot.TableSpec("t", rows, dim)
    metadata = tbe_aot.make_features([spec], weights_dtype=torch.float16)
    # Only the pages that are written or read take memory.
    weights = torch.empty(metadata.weights_numel, dtype=torch.float16)
    weights[-dim:] = torch.arange(dim) % 7
    out = torch.ops.tbe_aot.forward(
        weights,
        metadata.features,
        metadata.layout,
        torch.tensor([rows - 1, rows - 1], dtype=index_dtype),
        torch.tensor([0, 2], dtype=index_dtype),
    )
    assert torch.equal(out[0], 2 * (torch.arange(dim) % 7).float())


def test_fbgemm_6318_offsets_that_are_no_multiple_of_the_features():
    lookup = make_lookup([4, 4], [5, 5], [1] * 8)
    with pytest.raises(RuntimeError, match=r"offsets has 8 elements, expected T\*B\+1 with T = 2"):
        lookup.with_(offsets=lookup.offsets[:8]).forward()
    with pytest.raises(RuntimeError, match=r"offsets has 8 elements, expected T\*B\+1 with T = 2"):
        torch.ops.tbe_aot.check_bounds(
            lookup.indices, lookup.offsets[:8], lookup.metadata.features, lookup.metadata.layout
        )


def test_torchrec_2957_one_sample_weight_too_few():
    lookup = make_lookup([4], [5], [3, 2], weighted=True)
    assert lookup.per_sample_weights is not None
    with pytest.raises(
        RuntimeError, match="per_sample_weights has 4 elements, expected 5, one per index"
    ):
        lookup.with_(per_sample_weights=lookup.per_sample_weights[:-1]).forward()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
def test_torchrec_2502_vbe_layout(output_dtype, weighted):
    lookup = make_lookup(
        [8, 5],
        [10, 10],
        [2, 0, 3, 1, 2, 2, 4, 1, 1],
        batch_sizes=[[3, 0], [1, 5]],
        weighted=weighted,
    )
    lookup.verify("sum", output_dtype)
    lookup.verify("mean", output_dtype)


def test_torchrec_2502_vbe_writes_nothing_outside():
    lookup = make_lookup([8, 5], [10, 10], [1] * 9, batch_sizes=[[3, 0], [1, 5]])
    *args, output_numel = lookup.arguments()
    assert output_numel == 3 * 8 + 6 * 5
    with pytest.raises(RuntimeError, match="vbe_output_offsets puts feature 1, bag 5 outside"):
        torch.ops.tbe_aot.forward(*args, output_numel - 1)


def test_fbgemm_1610_absent_optional_tensors():
    lookup = make_lookup([4], [5], [3, 2])
    args = lookup.arguments()
    assert torch.equal(torch.ops.tbe_aot.forward(*args[:5]), lookup.forward())
    empty = torch.empty(0)
    assert torch.equal(
        torch.ops.tbe_aot.forward(*args[:5], empty, "sum", "float32", empty, empty, 0, 0),
        lookup.forward(),
    )
    check = (lookup.indices, lookup.offsets, lookup.metadata.features, lookup.metadata.layout)
    for absent in (None, empty):
        indices, offsets = torch.ops.tbe_aot.check_bounds(*check, "warning", absent, absent)
        assert torch.equal(indices, lookup.indices)
        assert torch.equal(offsets, lookup.offsets)


def test_pytorch_189668_a_table_of_dim_0():
    with pytest.raises(ValueError, match="table 't' has dim 0, expected 1 to 2048"):
        tbe_aot.TableSpec("t", 10, 0)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_fbgemm_1613_no_indices(weighted, pooling):
    lookup = make_lookup([4, 8], [5, 5], [0] * 6)
    if weighted:
        lookup = lookup.with_(per_sample_weights=torch.empty(0))
    assert torch.equal(lookup.forward(pooling), torch.zeros(3, 12))


@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
def test_torchrec_2773_fbgemm_3750_no_bags(output_dtype):
    lookup = make_lookup([4, 8], [5, 5], [])
    out = lookup.forward(output_dtype=output_dtype)
    assert out.shape == (0, 12)
    assert out.dtype == output_dtype


def test_torchrec_2773_fbgemm_3750_no_bags_vbe():
    lookup = make_lookup([4, 8], [5, 5], [], batch_sizes=[[0, 0], [0, 0]])
    assert lookup.forward().shape == (0,)


def test_a_table_without_rows():
    lookup = make_lookup([4, 8], [0, 5], [0, 0, 2, 1])
    lookup.verify()
    pruned = make_lookup([4, 8], [0, 5], [2, 1, 2, 1])
    pruned.indices[:3] = -1
    pruned.verify("mean")


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_pytorch_57446_mean_of_empty_bags(dtype):
    lookup = make_lookup([4], [5], [1, 0, 2, 0, 1], dtype=dtype)
    assert lookup.offsets.tolist() == [0, 1, 1, 3, 3, 4]
    out = lookup.forward("mean")
    assert torch.equal(out[1], torch.zeros(4))
    assert torch.equal(out[3], torch.zeros(4))
    assert not torch.isnan(out).any()


def test_fbgemm_1599_an_empty_sample_weights_tensor_means_unweighted():
    lookup = make_lookup([4], [5], [3, 2])
    empty = lookup.with_(per_sample_weights=torch.empty(0))
    assert torch.equal(empty.forward(), lookup.forward())


@pytest.mark.parametrize("output_dtype", [torch.float32, torch.float16])
def test_torchrec_3730_widened_before_added(output_dtype):
    weights, metadata, (table,) = make_tables([tbe_aot.TableSpec("t", 4, 8)], dtype=torch.float16)
    table.copy_(torch.tensor([2048.0, 1, 1, 1])[:, None].expand(4, 8))
    out = torch.ops.tbe_aot.forward(
        weights,
        metadata.features,
        metadata.layout,
        torch.arange(4),
        torch.tensor([0, 4]),
        None,
        "sum",
        dtype_name(output_dtype),
    )
    # 2051 is no fp16 number; rounded once it is 2052.
    assert torch.equal(out, torch.full((1, 8), 2051.0).to(output_dtype))


def test_torchrec_3730_fp32_rows_are_added_in_fp64():
    weights, metadata, (table,) = make_tables([tbe_aot.TableSpec("t", 3, 4)])
    table.copy_(torch.tensor([2.0**24, 1, 1])[:, None].expand(3, 4))
    out = torch.ops.tbe_aot.forward(
        weights, metadata.features, metadata.layout, torch.arange(3), torch.tensor([0, 3])
    )
    assert torch.equal(out, torch.full((1, 4), 2.0**24 + 2))


@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_torchrec_3856_the_output_dtype_asked_for(dtype, output_dtype):
    lookup = make_lookup([8], [5], [3, 2], dtype=dtype)
    assert lookup.forward(output_dtype=output_dtype).dtype == output_dtype


@pytest.mark.parametrize("bucket", [16, 32, 64, 128, 256, 512, 1024, 2048])
def test_fbgemm_5531_bf16_output_holds_bf16(bucket):
    lookup = make_lookup([bucket], [4], [2, 3], dtype=torch.bfloat16)
    expected, scale = lookup.expected()
    out = lookup.forward(output_dtype=torch.bfloat16)
    assert oracle.within_tolerance(out, expected, scale)
    assert torch.equal(out, lookup.forward().bfloat16())


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("length", range(1, 41))
def test_fbgemm_4006_weighted_bags_of_any_length(length, dtype):
    make_lookup([8, 5], [20, 20], [length, length], weighted=True, dtype=dtype).verify()


@pytest.mark.parametrize("bad", [10, -7])
def test_torchrec_575_out_of_bounds_in_each_mode(bad):
    lookup = make_lookup([4], [10], [1, 2])
    indices = torch.tensor([3, bad, 5])
    check = (indices, lookup.offsets, lookup.metadata.features, lookup.metadata.layout)
    for mode, counted in (("ignore", 0), ("warning", 1)):
        count = torch.zeros(1, dtype=torch.int64)
        checked, _ = torch.ops.tbe_aot.check_bounds(*check, mode, count)
        assert checked.tolist() == [3, 0, 5]
        assert count.item() == counted
    unchanged, _ = torch.ops.tbe_aot.check_bounds(*check, "none")
    assert unchanged.tolist() == [3, bad, 5]
    with pytest.raises(
        RuntimeError, match=rf"index {bad} at position 1 \(feature 0, bag 1\) .* -1 to 9"
    ):
        torch.ops.tbe_aot.check_bounds(*check, "fatal")
    assert indices.tolist() == [3, bad, 5]


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
def test_fbgemm_3979_every_index_invalid(index_dtype):
    lookup = make_lookup([4, 8], [10, 20], [5] * 8)
    count = torch.zeros(1, dtype=torch.int64)
    indices = torch.full_like(lookup.indices, 20).to(index_dtype)
    checked, _ = torch.ops.tbe_aot.check_bounds(
        indices, lookup.offsets, lookup.metadata.features, lookup.metadata.layout, "warning", count
    )
    assert count.item() == indices.numel()
    assert not checked.any()


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
def test_fbgemm_bounds_offsets_are_repaired_on_a_copy(index_dtype):
    lookup = make_lookup([4], [10], [2, 1, 3], index_dtype=index_dtype)
    offsets = lookup.offsets.clone()
    offsets[0] = -100
    offsets[-1] += 100
    before = offsets.clone(), lookup.indices.clone()
    _, checked = torch.ops.tbe_aot.check_bounds(
        lookup.indices, offsets, lookup.metadata.features, lookup.metadata.layout
    )
    assert torch.equal(checked, lookup.offsets)
    assert torch.equal(offsets, before[0])
    assert torch.equal(lookup.indices, before[1])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_a_pruned_row_adds_nothing_and_counts_in_the_length(dtype, weighted):
    lookup = make_lookup([4], [10], [4, 1], dtype=dtype, weighted=weighted)
    lookup.indices[2] = -1
    lookup.verify("sum")
    lookup.verify("mean")
    lookup.indices[:] = -1
    assert not lookup.forward("mean").any()
    count = torch.zeros(1, dtype=torch.int64)
    checked, _ = torch.ops.tbe_aot.check_bounds(
        lookup.indices,
        lookup.offsets,
        lookup.metadata.features,
        lookup.metadata.layout,
        "warning",
        count,
    )
    assert torch.equal(checked, lookup.indices)
    assert count.item() == 0


@pytest.mark.parametrize("offset_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
def test_torchrec_2263_fbgemm_1969_both_index_widths(index_dtype, offset_dtype):
    lookup = make_lookup(
        [4, 8], [10, 20], [3, 1, 2, 5], index_dtype=index_dtype, offset_dtype=offset_dtype
    )
    lookup.verify()
    checked = torch.ops.tbe_aot.check_bounds(
        lookup.indices, lookup.offsets, lookup.metadata.features, lookup.metadata.layout
    )
    assert [tensor.dtype for tensor in checked] == [index_dtype, index_dtype]


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 127])
def test_torchrec_1495_odd_dims(dim, dtype):
    make_lookup([dim, 8], [10, 10], [3, 1, 2, 5], dtype=dtype).verify("sum", dtype)


def test_torchrec_3187_bf16_tables():
    make_lookup([16, 3], [10, 10], [3, 1, 2, 5], dtype=torch.bfloat16).verify("mean")


def test_torchrec_3728_two_features_on_one_table():
    lookup = make_lookup([8], [10], [1, 1, 1, 1], feature_tables=[0, 0])
    lookup.indices[:] = 3
    out = lookup.forward()
    assert out.shape == (2, 16)
    assert torch.equal(out, lookup.tables[0][3].repeat(2, 2))
