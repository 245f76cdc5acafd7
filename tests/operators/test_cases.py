"""Public reports of what went wrong in such kernels, as tests of the forward on a CPU; named by project and issue."""

from __future__ import annotations

import pytest
import torch

import tbe_aot
from tbe_aot._rules import dtype_name
from tests.operators.support import (
    INDEX_DTYPES,
    OUTPUT_DTYPES,
    WEIGHT_DTYPES,
    make_lookup,
    make_tables,
    refusals,
)

# Of the large tensors here, only the pages that are written or read take memory.


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_fbgemm_3877_rows_beyond_2_to_the_31(dtype, index_dtype):
    dim = 1024
    rows = 2**31 // dim + 1
    metadata = tbe_aot.make_features([tbe_aot.TableSpec("t", rows, dim)], weights_dtype=dtype)
    weights = torch.empty(metadata.weights_numel, dtype=dtype)
    weights[-dim:] = torch.arange(dim) % 7
    out = torch.ops.tbe_aot.forward(
        weights,
        metadata.features,
        metadata.layout,
        torch.tensor([rows - 1, rows - 1], dtype=index_dtype),
        torch.tensor([0, 2], dtype=index_dtype),
    )
    assert torch.equal(out[0], 2 * (torch.arange(dim) % 7).float())


def test_fbgemm_3877_a_table_beyond_2_to_the_31():
    specs = [tbe_aot.TableSpec("before", 2**31 // 1024, 1024), tbe_aot.TableSpec("t", 2, 5)]
    metadata = tbe_aot.make_features(specs, ["t"], weights_dtype=torch.float16)
    assert metadata.table_offsets[1] == 2**31
    weights = torch.empty(metadata.weights_numel, dtype=torch.float16)
    table = weights.as_strided((2, 5), (metadata.row_pitches[1], 1), 2**31)
    table.copy_(torch.arange(10).view(2, 5))
    out = torch.ops.tbe_aot.forward(
        weights,
        metadata.features,
        metadata.layout,
        torch.tensor([1, 0, 1]),
        torch.tensor([0, 1, 3]),
    )
    assert out.tolist() == [[5, 6, 7, 8, 9], [5, 7, 9, 11, 13]]


def test_fbgemm_3877_output_beyond_2_to_the_31():
    lookup = make_lookup([8], [5], [2, 1], batch_sizes=[[2]])
    args = list(lookup.arguments("sum", torch.float16))
    starts = torch.tensor([2**31 + 8, 0])
    args[9], args[11] = starts, 2**31 + 16
    out = torch.ops.tbe_aot.forward(*args)
    assert out.numel() == 2**31 + 16
    rows = torch.stack([out[start : start + 8] for start in starts.tolist()])
    assert torch.equal(rows.flatten(), lookup.forward(output_dtype=torch.float16))


def test_fbgemm_6318_offsets_that_are_no_multiple_of_the_features():
    lookup = make_lookup([4, 4], [5, 5], [1] * 8)
    message = "offsets has 8 elements, expected T*B+1 with T = 2 features"
    forward = lookup.with_(offsets=lookup.offsets[:8]).arguments()
    assert refusals("forward", forward) == (f"tbe_aot::forward: {message}",) * 2
    metadata = (lookup.metadata.features, lookup.metadata.layout)
    check = (lookup.indices, lookup.offsets[:8], *metadata)
    assert refusals("check_bounds", check) == (f"tbe_aot::check_bounds: {message}",) * 2


@pytest.mark.parametrize("given", [4, 6])
def test_torchrec_2957_sample_weights_of_another_length(given):
    lookup = make_lookup([4], [5], [3, 2]).with_(per_sample_weights=torch.ones(given))
    message = f"per_sample_weights has {given} elements, expected 5, one per index"
    assert refusals("forward", lookup.arguments()) == (f"tbe_aot::forward: {message}",) * 2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_torchrec_2502_vbe_layout(dtype, output_dtype, weighted):
    lookup = make_lookup(
        [8, 5],
        [10, 10],
        [2, 0, 3, 1, 2, 2, 4, 1, 1],
        batch_sizes=[[3, 0], [1, 5]],
        dtype=dtype,
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
    # Rows with gaps between them, in so large an output that its memory is new: what nobody wrote is zero.
    args[9] = torch.arange(9) * 64 + 7
    out = torch.ops.tbe_aot.forward(*args, 2**24)
    dims = [8] * 3 + [5] * 6
    rows = torch.cat([s + torch.arange(d) for s, d in zip(args[9], dims, strict=True)])
    assert torch.equal(out[rows], lookup.forward())
    out[rows] = 0
    assert not out.any()


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


@pytest.mark.parametrize("dim", [0, -4])
def test_pytorch_189668_a_table_of_dim_0(dim):
    with pytest.raises(ValueError, match=f"table 't' has dim {dim}, expected 1 to 2048"):
        tbe_aot.TableSpec("t", 10, dim)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_fbgemm_1613_no_indices(dtype, output_dtype, pooling):
    lookup = make_lookup([4, 8], [5, 5], [0] * 6, dtype=dtype)
    for given in (lookup, lookup.with_(per_sample_weights=torch.empty(0))):
        out = given.forward(pooling, output_dtype)
        assert torch.equal(out, torch.zeros(3, 12, dtype=output_dtype))
    vbe = make_lookup([4, 8], [5, 5], [0] * 5, dtype=dtype, batch_sizes=[[1, 1], [0, 3]])
    out = vbe.forward(pooling, output_dtype)
    assert torch.equal(out, torch.zeros(2 * 4 + 3 * 8, dtype=output_dtype))


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


# 1 is lost when it is added to the first of these in the dtype itself.
@pytest.mark.parametrize(
    ("dtype", "large"),
    [(torch.float16, 2048.0), (torch.bfloat16, 256.0), (torch.float32, 2.0**24)],
)
@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
def test_torchrec_3730_widened_before_added(output_dtype, dtype, large):
    weights, metadata, tables = make_tables(
        [tbe_aot.TableSpec("even", 5, 8), tbe_aot.TableSpec("odd", 5, 3)], dtype=dtype
    )
    for table in tables:
        table.copy_(torch.tensor([large, 1, 1, 1, 1])[:, None].expand(table.shape))
    out = torch.ops.tbe_aot.forward(
        weights,
        metadata.features,
        metadata.layout,
        torch.arange(5).repeat(2),
        torch.tensor([0, 5, 10]),
        None,
        "sum",
        dtype_name(output_dtype),
    )
    expected = torch.full((1, 11), large + 4, dtype=torch.float64).to(output_dtype)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_torchrec_3856_the_output_dtype_asked_for(dtype, output_dtype):
    make_lookup([8], [5], [3, 2], dtype=dtype).verify(output_dtype=output_dtype)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("bucket", [16, 32, 64, 128, 256, 512, 1024, 2048])
def test_fbgemm_5531_bf16_output_holds_bf16(bucket, dtype, weighted):
    lookup = make_lookup([bucket, bucket - 1], [4, 4], [2, 3, 1, 4], dtype=dtype, weighted=weighted)
    for pooling in ("sum", "mean"):
        out = lookup.forward(pooling, torch.bfloat16)
        assert out.dtype == torch.bfloat16
        # Half of a bf16's last place, and what summing in fp32 may add.
        expected, scale = lookup.expected(pooling)
        assert bool(
            ((out.double() - expected).abs() <= 2**-8 * expected.abs() + 1e-6 * scale).all()
        )


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("length", range(1, 41))
def test_fbgemm_4006_weighted_bags_of_any_length(length, dtype):
    make_lookup([8, 5], [20, 20], [length, length], weighted=True, dtype=dtype).verify()


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("bad", [10, -7])
def test_torchrec_575_out_of_bounds_in_each_mode(bad, index_dtype):
    lookup = make_lookup([4], [10], [1, 2], index_dtype=index_dtype)
    indices = torch.tensor([3, bad, 5], dtype=index_dtype)
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


@pytest.mark.parametrize("bad", [10, -7])
def test_torchrec_575_the_module_in_each_mode(bad):
    bags = tbe_aot.TableBatchedEmbeddingBags([tbe_aot.TableSpec("t", 10, 4)], bounds_check="none")
    offsets = torch.tensor([0, 1, 3])
    repaired = bags(torch.tensor([3, 0, 5]), offsets)
    for mode in ("ignore", "warning"):
        bags.bounds_check = mode
        assert torch.equal(bags(torch.tensor([3, bad, 5]), offsets), repaired)
    bags.bounds_check = "fatal"
    with pytest.raises(RuntimeError, match=f"index {bad} at position 1"):
        bags(torch.tensor([3, bad, 5]), offsets)
    # The operator on a CPU looks, as the one on a GPU does not.
    bags.bounds_check = "none"
    with pytest.raises(RuntimeError, match=f"{bad} at position 1"):
        bags(torch.tensor([3, bad, 5]), offsets)


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
    assert [tensor.tolist() for tensor in checked] == [
        lookup.indices.tolist(),
        lookup.offsets.tolist(),
    ]


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 127])
def test_torchrec_1495_odd_dims(dim, dtype):
    make_lookup([dim, 8], [10, 10], [3, 1, 2, 5], dtype=dtype).verify("sum", dtype)


@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_torchrec_3187_bf16_tables(weighted, output_dtype):
    lookup = make_lookup(
        [16, 3, 200], [10, 10, 10], [3, 1, 2, 5, 0, 9], dtype=torch.bfloat16, weighted=weighted
    )
    lookup.verify("sum", output_dtype)
    lookup.verify("mean", output_dtype)


def test_torchrec_3728_two_features_on_one_table():
    lookup = make_lookup([8], [10], [1, 1, 1, 1], feature_tables=[0, 0])
    lookup.indices[:] = 3
    out = lookup.forward()
    assert out.shape == (2, 16)
    assert torch.equal(out, lookup.tables[0][3].repeat(2, 2))
