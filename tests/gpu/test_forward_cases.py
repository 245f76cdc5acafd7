"""The forward on inputs that have gone wrong elsewhere; the numbers after a project's name are public issues."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch

from tests.gpu import installed
from tests.gpu.support import (
    DTYPES,
    TOLERANCE,
    assert_right,
    make_lookup,
    make_metadata,
    make_tables,
    worst_error,
)

OUTPUT_DTYPES = list(DTYPES.values())


def random_lengths(bags: int, longest: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, longest + 1, (bags,), generator=torch.Generator().manual_seed(seed))


# --- memory and width


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dim", [64, 61], ids=["aligned", "generic"])
@pytest.mark.parametrize("weight_dtype", [torch.float16, torch.float32], ids=str)
def test_elements_beyond_2_to_the_31(weight_dtype, dim, index_dtype, cuda):
    """FBGEMM 3877: one table of just over 2^31 elements; the last row, which a 32-bit product would miss."""
    rows = 2**31 // dim + 2
    assert rows * dim > 2**31
    needed = rows * dim * weight_dtype.itemsize
    if torch.cuda.mem_get_info(cuda)[0] < needed + (1 << 30):
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of free device memory")
    weights = torch.zeros(rows * dim, dtype=weight_dtype, device=cuda)
    marks = {0: 1.0, 1: 2.0, rows // 2: 4.0, rows - 2: 8.0, rows - 1: 16.0}
    for row, value in marks.items():
        weights[row * dim : (row + 1) * dim] = value
    features = torch.tensor([[0, 0, dim, dim, rows, 0, 0, 0]], device=cuda)
    layout = [1, 1, dim, rows * dim, rows, rows, 64, int(dim == 64), 1]
    indices = torch.tensor([*marks, rows - 1, 0], dtype=index_dtype, device=cuda)
    offsets = torch.arange(len(marks) + 1, dtype=index_dtype, device=cuda)
    offsets[-1] = indices.numel()
    output = torch.ops.tbe_aot.forward(weights, features, layout, indices, offsets)
    expected = torch.tensor([*list(marks.values())[:-1], 16.0 + 16.0 + 1.0], device=cuda)
    assert torch.equal(output, expected[:, None].expand(-1, dim))
    del weights
    gc.collect()
    torch.cuda.empty_cache()


def test_second_table_beyond_2_to_the_31(cuda):
    """The same through a table's offset instead of a row's."""
    dim = 64
    rows = 2**31 // dim + 1
    if torch.cuda.mem_get_info(cuda)[0] < 2 * rows * dim + (1 << 30):
        pytest.skip("needs 5 GiB of free device memory")
    weights = torch.zeros((rows + 2) * dim, dtype=torch.float16, device=cuda)
    weights[rows * dim :] = torch.arange(2 * dim, device=cuda)
    features = torch.tensor(
        [[0, 0, dim, dim, rows, 0, 0, 0], [1, rows * dim, dim, dim, 2, dim, 1, rows]], device=cuda
    )
    layout = [1, 2, 2 * dim, (rows + 2) * dim, rows + 2, rows, 64, 1, 2]
    indices = torch.tensor([rows - 1, 1], device=cuda)
    offsets = torch.tensor([0, 1, 2], device=cuda)
    output = torch.ops.tbe_aot.forward(weights, features, layout, indices, offsets)
    assert torch.equal(output[0, :dim], torch.zeros(dim, device=cuda))
    assert torch.equal(output[0, dim:], torch.arange(dim, 2 * dim, device=cuda).float())
    del weights
    gc.collect()
    torch.cuda.empty_cache()


def test_output_beyond_2_to_the_31(cuda):
    """The same on the side of the output: the last rows start behind 2^31 elements."""
    dim = 1024
    batch = 2**31 // dim + 3
    if torch.cuda.mem_get_info(cuda)[0] < 2 * batch * dim + (1 << 30):
        pytest.skip("needs 5 GiB of free device memory")
    tables = make_tables((5,), (dim,), torch.float16, cuda)
    lengths = torch.zeros(batch, dtype=torch.int64)
    lengths[[0, -2, -1]] = torch.tensor([1, 2, 1])
    lookup = make_lookup(tables, (0,), installed.buckets(), lengths)
    lookup.indices.copy_(torch.tensor([3, 1, 4, 2]))
    output = lookup.run("sum", torch.float16)
    table = tables.view(0).float()
    assert torch.equal(output[0], table[3].half())
    assert torch.equal(output[-2], (table[1] + table[4]).half())
    assert torch.equal(output[-1], table[2].half())
    assert not output[1:-2].any()
    del output
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_more_than_2_to_the_31_lookups(index_dtype, cuda):
    """Offsets up to N: int32 indices are widened when it does not fit them."""
    length = 4096
    bags = 2**31 // length + 1
    lookups = bags * length
    # The indices, and their copy of 8 bytes each.
    if torch.cuda.mem_get_info(cuda)[0] < 16 * lookups + (1 << 30):
        pytest.skip("needs 33 GiB of free device memory")
    tables = make_tables((2,), (8,), torch.float16, cuda)
    tables.view(0).copy_(torch.tensor([[1.0], [2.0]]).expand(2, 8))
    features, layout = make_metadata(tables, (0,), installed.buckets())
    indices = torch.zeros(lookups, dtype=index_dtype, device=cuda)
    indices[-3:] = 1
    offsets = torch.arange(bags + 1, device=cuda) * length
    output = torch.ops.tbe_aot.forward(tables.weights, features, layout, indices, offsets)
    expected = torch.full((bags, 8), float(length), device=cuda)
    expected[-1] += 3
    assert torch.equal(output, expected)
    del indices
    gc.collect()
    torch.cuda.empty_cache()


# --- sizes that do not fit


def test_offsets_that_are_no_multiple_of_the_features(cuda):
    """FBGEMM 6318: 8 offsets of 2 features, an error with both numbers."""
    tables = make_tables((5, 6), (16, 7), torch.float16, cuda)
    lookup = make_lookup(tables, (0, 1), installed.buckets(), torch.ones(8, dtype=torch.int64))
    arguments = lookup.arguments()
    arguments[4] = lookup.offsets[:8]
    message = r"offsets has 8 elements, expected T\*B\+1 with T = 2 features"
    with pytest.raises(RuntimeError, match=message):
        torch.ops.tbe_aot.forward(*arguments)
    with pytest.raises(RuntimeError, match=message):
        torch.ops.tbe_aot.check_bounds(
            lookup.indices, lookup.offsets[:8], lookup.features, lookup.layout
        )


@pytest.mark.parametrize("change", [-1, 1])
def test_per_sample_weights_of_another_length(change, cuda):
    """torchrec 2957."""
    tables = make_tables((5,), (16,), torch.float16, cuda)
    lookup = make_lookup(tables, (0,), installed.buckets(), torch.tensor([2, 3]))
    arguments = lookup.arguments()
    arguments[5] = torch.ones(5 + change, device=cuda)
    message = f"per_sample_weights has {5 + change} elements, expected 5, one per index"
    with pytest.raises(RuntimeError, match=message):
        torch.ops.tbe_aot.forward(*arguments)


# --- empty


@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES, ids=str)
def test_no_indices_gives_zeros(output_dtype, cuda):
    """FBGEMM 1613."""
    tables = make_tables((5, 6), (16, 7), torch.float16, cuda)
    lookup = make_lookup(tables, (0, 1), installed.buckets(), torch.zeros(8, dtype=torch.int64))
    output = assert_right(lookup, "mean", output_dtype)
    assert torch.equal(output, torch.zeros(4, 23, dtype=output_dtype, device=cuda))


def test_no_bags_gives_an_empty_output_and_launches_nothing(cuda):
    """torchrec 2773, FBGEMM 3750."""
    tables = make_tables((5, 6), (16, 7), torch.float16, cuda)
    lookup = make_lookup(tables, (0, 1), installed.buckets(), torch.zeros(0, dtype=torch.int64))
    assert lookup.run().shape == (0, 23)
    assert installed.explain_forward(lookup) == []
    torch.cuda.synchronize()


def test_no_bags_of_a_variable_batch(cuda):
    """torchrec 2773, FBGEMM 3750."""
    tables = make_tables((5, 6), (16, 7), torch.float16, cuda)
    none = torch.zeros(0, dtype=torch.int64)
    lookup = make_lookup(tables, (0, 1), installed.buckets(), none, batch_sizes=[[0, 0], [0, 0]])
    assert lookup.run().shape == (0,)
    torch.cuda.synchronize()


@pytest.mark.parametrize("padding", [0, None], ids=["dense", "padded"])
@pytest.mark.parametrize("weight_dtype", list(DTYPES.values()), ids=str)
def test_mean_of_empty_bags_is_zero(weight_dtype, padding, cuda):
    """pytorch 57446: offsets 0, 1, 1, 3, 3, 4."""
    tables = make_tables((5,), (15,), weight_dtype, cuda, padding=padding)
    lookup = make_lookup(tables, (0,), installed.buckets(), torch.tensor([1, 0, 2, 0, 1]))
    output = assert_right(lookup, "mean")
    assert not output[[1, 3]].any()


def test_a_table_without_rows(cuda):
    tables = make_tables((0, 5), (16, 16), torch.float32, cuda)
    lookup = make_lookup(tables, (0, 1), installed.buckets(), torch.tensor([0, 0, 2, 1]))
    assert_right(lookup)


def test_absent_and_empty_optional_tensors(cuda):
    """FBGEMM 1610, 1599: never dereferenced, and an empty tensor means none."""
    tables = make_tables((5,), (16,), torch.float32, cuda)
    lookup = make_lookup(tables, (0,), installed.buckets(), torch.tensor([2, 3]))
    expected = assert_right(lookup)
    required = lookup.arguments()[:5]
    assert torch.equal(torch.ops.tbe_aot.forward(*required), expected)
    empty = torch.empty(0, device=cuda)
    # Also one that was left on the CPU.
    for none in (empty, empty.half(), torch.empty(0)):
        output = torch.ops.tbe_aot.forward(*required, none, "sum", "float32", none, none, 0, 0)
        assert torch.equal(output, expected)
    check = (lookup.indices, lookup.offsets, lookup.features, lookup.layout, "warning")
    for absent in (None, empty):
        indices, offsets = torch.ops.tbe_aot.check_bounds(*check, absent, absent)
        assert torch.equal(indices, lookup.indices)
        assert torch.equal(offsets, lookup.offsets)


# --- numbers


@pytest.mark.parametrize("padding", [0, None], ids=["dense", "padded"])
@pytest.mark.parametrize(
    ("weight_dtype", "large"),
    [(torch.float16, 2048.0), (torch.bfloat16, 256.0), (torch.float32, 2.0**24)],
    ids=str,
)
def test_rows_are_widened_before_they_are_added(weight_dtype, large, padding, cuda):
    """torchrec 3730: 1 is lost when it is added to a large row in the dtype itself; every bucket and shape."""
    dims = [bucket - 1 for bucket in installed.buckets()]
    tables = make_tables([101] * len(dims), dims, weight_dtype, cuda, padding=padding)
    for t in range(len(dims)):
        tables.view(t).fill_(1)
        tables.view(t)[0] = large
    for length in (5, 13, 101):
        lengths = torch.full((len(dims),), length)
        lookup = make_lookup(tables, range(len(dims)), installed.buckets(), lengths)
        lookup.indices.copy_(torch.arange(length).repeat(len(dims)))
        expected = torch.full((1, sum(dims)), large + length - 1, device=cuda)
        assert torch.equal(lookup.run(), expected)


@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES, ids=str)
@pytest.mark.parametrize("weight_dtype", list(DTYPES.values()), ids=str)
def test_every_dtype_pair_at_every_bucket(weight_dtype, output_dtype, cuda):
    """torchrec 3856, FBGEMM 5531: all buckets in one call, the output dtype that was asked for."""
    buckets = installed.buckets()
    tables = make_tables([30] * len(buckets), buckets, weight_dtype, cuda)
    lookup = make_lookup(
        tables, range(len(buckets)), buckets, random_lengths(6 * len(buckets), 9), pruned=0.1
    )
    assert_right(lookup, "sum", output_dtype)
    assert_right(lookup, "mean", output_dtype)


@pytest.mark.parametrize("padding", [0, None], ids=["dense", "padded"])
@pytest.mark.parametrize("weight_dtype", list(DTYPES.values()), ids=str)
@pytest.mark.parametrize("length", range(1, 41))
def test_weighted_bags_of_every_length(length, weight_dtype, padding, cuda):
    """FBGEMM 4006: not a multiple of any unroll factor; finite and right, in every bucket."""
    dims = [bucket - 1 for bucket in installed.buckets()]
    tables = make_tables([50] * len(dims), dims, weight_dtype, cuda, padding=padding)
    lengths = torch.full((5 * len(dims),), length)
    lookup = make_lookup(tables, range(len(dims)), installed.buckets(), lengths, weighted=True)
    assert_right(lookup)


def test_every_index_the_same(cuda):
    """FBGEMM 5732, torchrec 1298: 64 bags of one popular row; and equal bits over 5 runs."""
    tables = make_tables((20,), (8,), torch.float16, cuda)
    lookup = make_lookup(tables, (0,), installed.buckets(), torch.full((64,), 50))
    lookup.indices.zero_()
    first = assert_right(lookup)
    assert torch.equal(first, first[:1].expand(64, -1))
    for _ in range(4):
        assert torch.equal(lookup.run(), first)


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES, ids=str)
def test_equal_bits_over_five_runs(output_dtype, weighted, cuda):
    dims = (16, 33, 64, 128, 256, 600)
    tables = make_tables([500] * len(dims), dims, torch.float16, cuda)
    lookup = make_lookup(
        tables,
        range(len(dims)),
        installed.buckets(),
        random_lengths(len(dims) * 512, 60),
        weighted=weighted,
        pruned=0.02,
    )
    first = assert_right(lookup, "mean", output_dtype)
    for _ in range(4):
        assert torch.equal(lookup.run("mean", output_dtype), first)


# --- indices


@pytest.mark.parametrize("offset_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_offsets_of_the_other_width(index_dtype, offset_dtype, cuda):
    """torchrec 2263, FBGEMM 1969."""
    tables = make_tables((50, 60), (64, 20), torch.float16, cuda)
    lookup = make_lookup(
        tables,
        (0, 1),
        installed.buckets(),
        random_lengths(40, 9),
        index_dtype=index_dtype,
        offset_dtype=offset_dtype,
    )
    assert_right(lookup)


@pytest.mark.parametrize("short", [False, True], ids=["long", "short"])
def test_pruned_rows_add_nothing_but_count_in_the_mean(short, cuda):
    tables = make_tables((5,), (16,), torch.float32, cuda)
    lookup = make_lookup(tables, (0,), installed.buckets(), torch.tensor([3] if short else [30]))
    lookup.indices[1] = -1
    assert_right(lookup)
    assert_right(lookup, "mean")
    lookup.indices.fill_(-1)
    assert not lookup.run("mean").any()


# --- dims and alignment


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("weight_dtype", list(DTYPES.values()), ids=str)
@pytest.mark.parametrize("padding", [0, None], ids=["dense", "padded"])
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 127])
def test_any_dim(dim, padding, weight_dtype, weighted, cuda):
    """torchrec 1495."""
    tables = make_tables((50, 9), (dim, dim), weight_dtype, cuda, padding=padding)
    for longest in (2, 20):
        lengths = random_lengths(2 * 37, longest)
        lookup = make_lookup(tables, (0, 1), installed.buckets(), lengths, weighted=weighted)
        for output_dtype in OUTPUT_DTYPES:
            assert_right(lookup, "sum", output_dtype)


def test_mixed_dims_and_shared_tables(cuda):
    """Aligned and generic features of many buckets in one call, features on tables in no order."""
    dims = (128, 3, 16, 100, 512, 64, 24, 2048, 1)
    order = (4, 0, 8, 3, 2, 6, 5, 1, 7, 0, 3)
    tables = make_tables([40 + t for t in range(len(dims))], dims, torch.bfloat16, cuda)
    for longest, vbe in itertools.product((2, 15), (False, True)):
        batch_sizes = [[t % 4, 7 - t % 3] for t in range(len(order))] if vbe else None
        bags = sum(map(sum, batch_sizes)) if batch_sizes else 13 * len(order)
        lookup = make_lookup(
            tables,
            order,
            installed.buckets(),
            random_lengths(bags, longest),
            weighted=True,
            batch_sizes=batch_sizes,
            pruned=0.05,
        )
        for output_dtype in OUTPUT_DTYPES:
            assert_right(lookup, "sum", output_dtype)
            assert_right(lookup, "mean", output_dtype)


@pytest.mark.parametrize("start", [0, 7], ids=["even", "odd"])
@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES, ids=str)
@pytest.mark.parametrize("weight_dtype", list(DTYPES.values()), ids=str)
def test_vbe_writes_its_rows_and_nothing_else(weight_dtype, output_dtype, start, cuda):
    """torchrec 2502: Bs = [[3, 0], [1, 5]]; and with gaps between the rows, which stay as they were."""
    dims = (5, 16)
    tables = make_tables((9, 8), dims, weight_dtype, cuda)
    lookup = make_lookup(
        tables, (0, 1), installed.buckets(), random_lengths(9, 5), batch_sizes=[[3, 0], [1, 5]]
    )
    dense = assert_right(lookup, "sum", output_dtype)
    assert dense.shape == (3 * 5 + 6 * 16,)

    starts = torch.arange(9) * 64 + start
    arguments = lookup.arguments("sum", output_dtype)
    arguments[9] = starts.to(cuda)
    # A block of its own, which the allocator gives out again because no other of that size is free.
    numel = (12 << 20) // output_dtype.itemsize
    arguments[11] = numel
    torch.cuda.empty_cache()
    poisoned = torch.full((numel,), torch.nan, dtype=output_dtype, device=cuda)
    address = poisoned.data_ptr()
    del poisoned
    output = torch.ops.tbe_aot.forward(*arguments)
    assert output.data_ptr() == address
    widths = [dims[0]] * 3 + [dims[1]] * 6
    elements = torch.cat([s + torch.arange(d) for s, d in zip(starts, widths, strict=True)])
    assert torch.equal(output[elements.to(cuda)], dense)
    output[elements.to(cuda)] = torch.nan
    assert output.isnan().all()


@pytest.mark.parametrize("weight_dtype", list(DTYPES.values()), ids=str)
def test_weights_one_element_off(weight_dtype, cuda):
    """Everything aligned but the pointer: the generic variant runs, and the numbers stay."""
    tables = make_tables((50, 60), (64, 128), weight_dtype, cuda, misalign=1)
    assert tables.weights.data_ptr() % 16 != 0
    lookup = make_lookup(tables, (0, 1), installed.buckets(), random_lengths(40, 20))
    assert_right(lookup)
    names = installed.explain_forward(lookup)
    assert names
    assert all("generic" in name for name in names)


def test_row_pitch_wider_than_the_row(cuda):
    """Gaps between rows, aligned and not; what lies in them (NaN) is never added."""
    for padding in (8, 3):
        tables = make_tables((50, 60), (64, 128), torch.float16, cuda, padding=padding)
        lookup = make_lookup(tables, (0, 1), installed.buckets(), random_lengths(40, 20))
        assert_right(lookup)


def test_one_odd_table_does_not_demote_its_bucket(cuda):
    """Features of one bucket are split by alignment: the last table starts 3 elements off."""
    tables = make_tables((50, 1, 60), (128, 3, 128), torch.float16, cuda, padding=0)
    lookup = make_lookup(tables, (0, 2), installed.buckets(), random_lengths(80, 40))
    assert_right(lookup)
    kinds = ["aligned" in name for name in installed.explain_forward(lookup)]
    assert sorted(kinds) == [False, True]


@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES, ids=str)
@pytest.mark.parametrize("last", [1, 8, 120], ids=lambda dim: f"beside_{dim}")
def test_padded_rows_are_aligned_whatever_the_output_is(last, output_dtype, cuda):
    """Rows of the output may start anywhere: they are stored right, and nothing beside them is."""
    tables = make_tables((50, 60, 70), (128, 127, last), torch.float16, cuda)
    lookup = make_lookup(tables, (0, 1, 2), installed.buckets(), random_lengths(120, 40))
    assert_right(lookup, "sum", output_dtype)
    assert all("aligned" in name for name in installed.explain_forward(lookup))


def test_non_contiguous_inputs(cuda):
    tables = make_tables((50, 60), (64, 20), torch.float16, cuda)
    lookup = make_lookup(tables, (0, 1), installed.buckets(), random_lengths(40, 9), weighted=True)
    arguments = lookup.arguments()
    for position in (3, 4, 5):
        tensor = arguments[position]
        assert isinstance(tensor, torch.Tensor)
        arguments[position] = torch.stack([tensor, tensor + 1], dim=1)[:, 0]
    assert torch.equal(torch.ops.tbe_aot.forward(*arguments), lookup.run())


# --- beside the CPU operator


@pytest.mark.parametrize("vbe", [False, True], ids=["batch", "vbe"])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES, ids=str)
@pytest.mark.parametrize("weight_dtype", list(DTYPES.values()), ids=str)
def test_cpu_and_cuda_agree(weight_dtype, output_dtype, pooling, vbe, cuda):
    tables = make_tables((50, 60, 9), (64, 20, 300), weight_dtype, cuda)
    batch_sizes = [[11, 4], [9, 0], [0, 6]] if vbe else None
    bags = sum(map(sum, batch_sizes)) if batch_sizes else 60
    lookup = make_lookup(
        tables,
        (0, 1, 2),
        installed.buckets(),
        random_lengths(bags, 20),
        weighted=True,
        batch_sizes=batch_sizes,
        pruned=0.1,
    )
    arguments = [
        value.cpu() if isinstance(value, torch.Tensor) else value
        for value in lookup.arguments(pooling, output_dtype)
    ]
    on_cpu = torch.ops.tbe_aot.forward(*arguments)
    assert on_cpu.device.type == "cpu"
    assert on_cpu.dtype == output_dtype
    assert worst_error(on_cpu.to(cuda), lookup, pooling) <= TOLERANCE[output_dtype]
    assert_right(lookup, pooling, output_dtype)


@pytest.mark.parametrize("vbe", [False, True], ids=["batch", "vbe"])
@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
def test_opcheck(weighted, vbe, cuda):
    """FBGEMM 3240, 3755, 3368: both operators, with optional arguments absent and present, dynamic N and B."""
    tables = make_tables((50, 60), (64, 20), torch.float16, cuda)
    lookup = make_lookup(
        tables,
        (0, 1),
        installed.buckets(),
        random_lengths(8, 9),
        weighted=weighted,
        batch_sizes=[[1, 2], [5, 0]] if vbe else None,
    )
    forward = lookup.arguments()
    torch.library.opcheck(torch.ops.tbe_aot.forward.default, tuple(forward))
    bag_offsets = lookup.vbe.bag_offsets if lookup.vbe else None
    count = torch.zeros(1, dtype=torch.int64, device=cuda) if weighted else None
    check = (forward[3], forward[4], forward[1], forward[2], "warning", count, bag_offsets)
    torch.library.opcheck(torch.ops.tbe_aot.check_bounds.default, check)


# --- refused


MOVED = [
    (1, "features"),
    (3, "indices"),
    (4, "offsets"),
    (5, "per_sample_weights"),
    (8, "vbe_bag_offsets"),
    (9, "vbe_output_offsets"),
]


@pytest.mark.parametrize("there", ["cuda", "cpu"])
@pytest.mark.parametrize(("position", "name"), MOVED)
def test_a_tensor_on_another_device_than_the_weights_is_named(position, name, there, cuda):
    """torchrec 995: on the CPU beside CUDA weights, and the reverse."""
    weights_device, other = (cuda, torch.device("cpu"))[:: 1 if there == "cpu" else -1]
    tables = make_tables((50,), (64,), torch.float16, weights_device)
    lookup = make_lookup(
        tables,
        (0,),
        installed.buckets(),
        random_lengths(9, 9),
        weighted=True,
        batch_sizes=[[4, 5]],
    )
    arguments = lookup.arguments()
    tensor = arguments[position]
    assert isinstance(tensor, torch.Tensor)
    arguments[position] = tensor.to(other)
    message = f"{name} is on {other}, expected {weights_device}, the device of weights"
    with pytest.raises(RuntimeError, match=f"tbe_aot::forward: {message}"):
        torch.ops.tbe_aot.forward(*arguments)


def test_weights_shorter_than_the_layout_says(cuda):
    """A wrong weight tensor is an error on the host, not a read past its end."""
    tables = make_tables((50,), (64,), torch.float16, cuda)
    lookup = make_lookup(tables, (0,), installed.buckets(), random_lengths(9, 9))
    metadata, layout = make_metadata(tables, (0,), installed.buckets())
    with pytest.raises(RuntimeError, match="weights"):
        torch.ops.tbe_aot.forward(
            tables.weights[:-1], metadata, layout, lookup.indices, lookup.offsets
        )


# --- rounding


@pytest.mark.parametrize("dim", [16, 15, 128, 2048])
@pytest.mark.parametrize(
    ("output_dtype", "last_bit"), [(torch.float16, 2.0**-10), (torch.bfloat16, 2.0**-7)], ids=str
)
def test_half_output_of_fp32_rows_is_rounded_once(output_dtype, last_bit, dim, cuda):
    """Just beside the midpoint of two neighbours: rounding to fp32 first would land on it and go to the even one."""
    sign = torch.tensor([1.0, -1.0], device=cuda)
    # (1, 1/2 last bit, +-tiny): above the midpoint up, below it down; the same below zero.
    rows = torch.stack([sign, sign * last_bit / 2, sign * 2.0**-40, -sign * 2.0**-40], 1).view(-1)
    odd = torch.stack([sign * (1 + last_bit), sign * last_bit / 2, -sign * 2.0**-40], 1).view(-1)
    weights = torch.cat([rows, odd])[:, None].expand(-1, dim).contiguous()
    features = torch.tensor([[0, 0, dim, dim, weights.shape[0], 0, 0, 0]], device=cuda)
    layout = [1, 1, dim, weights.numel(), weights.shape[0], weights.shape[0]]
    layout += [min(b for b in installed.buckets() if b >= dim), int(dim % 4 == 0), 1]
    bags = [[0, 1, 2], [0, 1, 3], [4, 5, 6], [4, 5, 7], [8, 9, 10], [11, 12, 13], [8, 9], [0, 1]]
    indices = torch.tensor([row for bag in bags for row in bag], device=cuda)
    offsets = torch.tensor([0, *map(len, bags)], device=cuda).cumsum(0)
    output = torch.ops.tbe_aot.forward(
        weights.view(-1), features, layout, indices, offsets, None, "sum", str(output_dtype)[6:]
    )
    up = 1 + last_bit
    # The last two are ties, which go to the even neighbour.
    expected = [up, 1.0, -up, -1.0, up, -up, 1 + 2 * last_bit, 1.0]
    wanted = torch.tensor(expected, dtype=output_dtype, device=cuda)
    assert torch.equal(output, wanted[:, None].expand(-1, dim))
