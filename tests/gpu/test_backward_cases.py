"""The backward's operators on inputs that have gone wrong elsewhere; the numbers after a project's name are public issues."""

from __future__ import annotations

import gc
import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.gpu import installed
from tests.gpu.backward_calls import beyond_32_bits, make_popular, transpose_faults
from tests.gpu.processes import run_program
from tests.gpu.support import DTYPES, Lookup, make_lookup, make_tables
from tests.gpu.training import (
    DECAYS,
    OPTIMIZERS,
    Training,
    make_gradient,
    make_optimizer,
    make_training,
    same_bits,
)
from tests.gpu.transposed import reference, take_apart
from tests.transposed import CHUNK

DTYPE_LIST = list(DTYPES.values())
RUN_LENGTHS = (1, 2, 127, 128, 129, 255, 256, 257, 511, 512, 513)


def random_lengths(bags: int, longest: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, longest + 1, (bags,), generator=torch.Generator().manual_seed(seed))


def lookup_of(
    device: torch.device,
    lengths: torch.Tensor,
    *,
    rows: tuple[int, ...] = (50, 60),
    dims: tuple[int, ...] = (64, 20),
    features: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.float32,
    padding: int | None = None,
    **options: Any,
) -> Lookup:
    tables = make_tables(rows, dims, dtype, device, padding=padding)
    used = range(len(rows)) if features is None else features
    return make_lookup(tables, used, installed.buckets(), lengths, **options)


def run_lookup(device: torch.device, lengths: tuple[int, ...], dim: int, **options: Any) -> Lookup:
    """One table whose row i is looked up ``lengths[i]`` times, in bags of 4 and in no order."""
    index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    index = index[torch.randperm(index.numel(), generator=torch.Generator().manual_seed(1))]
    bags, rest = divmod(index.numel(), 4)
    bag_lengths = torch.tensor([4] * bags + [rest])
    lookup = lookup_of(device, bag_lengths, rows=(len(lengths) + 1,), dims=(dim,), **options)
    lookup.indices.copy_(index)
    return lookup


# --- memory and width


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dim", [64, 61], ids=["aligned", "generic"])
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adagrad"])
def test_elements_beyond_2_to_the_31(optimizer, dim, index_dtype, cuda):
    """FBGEMM 3877: tables and states of just over 2^31 elements; the last row, which a 32-bit product would miss."""
    rows = 2**31 // dim + 2
    assert rows * dim > 2**31
    needed = rows * dim * (2 if optimizer == "rowwise_adagrad" else 6)
    if torch.cuda.mem_get_info(cuda)[0] < needed + (2 << 30):
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of free device memory")
    weights = torch.zeros(rows * dim, dtype=torch.float16, device=cuda)
    state_numel = rows if optimizer == "rowwise_adagrad" else rows * dim
    momentum = torch.zeros(state_numel, device=cuda)
    marks = [0, 1, rows // 2, rows - 2, rows - 1]
    weights.view(rows, dim)[marks] = 1.0
    features = torch.tensor([[0, 0, dim, dim, rows, 0, 0, 0]], device=cuda)
    layout = [1, 1, dim, rows * dim, rows, rows, 64, 2 if dim == 64 else 0, 1]
    # The last row has a long run, the others short ones.
    indices = torch.tensor([*marks, *[rows - 1] * 299], dtype=index_dtype, device=cuda)
    offsets = torch.arange(indices.numel() + 1, dtype=index_dtype, device=cuda)
    grad = torch.full((indices.numel(), dim), 0.5, dtype=torch.float16, device=cuda)
    shared = (features, layout, indices, offsets)
    gradient = torch.ops.tbe_aot.per_sample_weights_gradient(grad, weights, *shared)
    assert torch.equal(gradient, torch.full_like(gradient, dim / 2))
    rate = torch.full((1,), 0.5, device=cuda)
    torch.ops.tbe_aot.backward_update(grad, weights, *shared, optimizer, rate, momentum, eps=0.0)
    # The statistic of a first step is the square of the gradient: every step is the learning rate.
    changed = weights.view(rows, dim)[marks]
    assert torch.equal(changed, torch.full_like(changed, 0.5))
    assert int(weights.count_nonzero()) == len(marks) * dim
    states = momentum.view(rows, -1)[marks]
    wanted = torch.tensor([0.25] * 4 + [150.0**2], device=cuda)[:, None].expand_as(states)
    # A mean over the columns, divided and rounded in fp32.
    torch.testing.assert_close(states, wanted, rtol=1e-6, atol=0)
    assert int(momentum.count_nonzero()) == states.numel()
    del weights, momentum
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_gradient_beyond_2_to_the_31(pooling, cuda):
    """The same on the side of the gradient: positions have all 32 bits."""
    dim = 1024
    batch = 2**31 // dim + 5
    if torch.cuda.mem_get_info(cuda)[0] < 2 * batch * dim + (2 << 30):
        pytest.skip("needs 6 GiB of free device memory")
    tables = make_tables((5,), (dim,), torch.float16, cuda)
    lengths = torch.zeros(batch, dtype=torch.int64)
    lengths[[0, -2, -1]] = torch.tensor([1, 2, 300])
    lookup = make_lookup(tables, (0,), installed.buckets(), lengths)
    lookup.indices.copy_(torch.tensor([3, 1, 4] + [2] * 300))
    grad = torch.zeros(batch, dim, dtype=torch.float16, device=cuda)
    grad[0], grad[-2], grad[-1] = 0.5, -1.0, 0.25
    table = tables.view(0)
    table.fill_(1.0)
    arguments = (lookup.features, lookup.layout, lookup.indices, lookup.offsets)
    rate = torch.ones(1, device=cuda)
    torch.ops.tbe_aot.backward_update(
        grad, tables.weights, *arguments, "sgd", rate, pooling=pooling
    )
    steps = {3: 0.5, 1: -1.0, 4: -1.0, 2: 0.25 * 300}
    if pooling == "mean":
        steps = {3: 0.5, 1: -0.5, 4: -0.5, 2: 0.25}
    for row in range(5):
        moved = torch.full((dim,), 1.0 - steps.get(row, 0.0), dtype=torch.float16, device=cuda)
        torch.testing.assert_close(table[row], moved, rtol=1e-3, atol=0)
    del grad
    gc.collect()
    torch.cuda.empty_cache()


def test_a_gradient_of_more_than_2_to_the_32_elements_is_refused(cuda):
    tables = make_tables((5,), (2048,), torch.float16, cuda)
    batch = 2**32 // 2048 + 1
    lookup = make_lookup(tables, (0,), installed.buckets(), torch.zeros(batch, dtype=torch.int64))
    # Expanded: nobody may make a copy of it before it is looked at.
    grad = torch.ones((), dtype=torch.float16, device=cuda).expand(batch, 2048)
    training = make_training(lookup, "sgd", grad_output=grad)
    before = training.snapshot()
    with pytest.raises(RuntimeError, match=f"grad_output has {batch * 2048} elements"):
        training.run()
    assert training.equals(before)


def test_2_to_the_30_lookups_are_refused(cuda):
    count = 2**30
    tables = make_tables((5,), (16,), torch.float16, cuda)
    lookup = make_lookup(tables, (0,), installed.buckets(), torch.tensor([1]))
    indices = torch.zeros((), dtype=torch.int32, device=cuda).expand(count)
    lookup = replace(lookup, indices=indices, _expected={})
    training = make_training(lookup, "sgd")
    before = training.snapshot()
    for call in (training.run, training.transpose):
        with pytest.raises(RuntimeError, match=f"indices has {count} elements"):
            call()
    assert training.equals(before)


# --- empty


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("lengths", [[0, 0, 0, 0], []])
def test_nothing_looked_up_touches_nothing(optimizer, lengths, device):
    """FBGEMM 1613, 3750, torchrec 2773."""
    lookup = lookup_of(device, torch.tensor(lengths, dtype=torch.int64), weighted=True)
    training = make_training(lookup, optimizer)
    weights = training.lookup.tables.weights.clone()
    training.verify()
    assert same_bits(training.lookup.tables.weights, weights)
    assert training.sample_weights_gradient().shape == (0,)
    transposed = training.transpose()
    assert take_apart(transposed, training).run_begins == [0, 0, 0]
    training.verify(transposed=transposed)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_variable_batch_without_bags(optimizer, device):
    none = torch.zeros(0, dtype=torch.int64)
    make_training(lookup_of(device, none, batch_sizes=[[0, 0], [0, 0]]), optimizer).verify()


@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
def test_mean_over_empty_bags(dtype, device):
    """pytorch 57446: offsets 0, 1, 1, 3, 3, 4."""
    lengths = torch.tensor([1, 0, 2, 0, 1])
    lookup = lookup_of(device, lengths, rows=(5,), dims=(15,), dtype=dtype)
    for optimizer in OPTIMIZERS:
        make_training(lookup, optimizer, pooling="mean").verify()


def test_a_table_without_rows(device):
    lookup = lookup_of(device, torch.tensor([0, 0, 2, 1]), rows=(0, 5), dims=(16, 16))
    for optimizer in OPTIMIZERS:
        make_training(lookup, optimizer).verify()


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_lookups_of_no_bag_change_nothing(pooling, weighted, device):
    lookup = lookup_of(device, torch.full((400,), 3), weighted=weighted)
    # The first and the last 150 belong to no bag; their rows stay as they are.
    ends = [min(max(end, 150), 1050) for end in lookup.ends]
    lookup = replace(
        lookup,
        offsets=torch.tensor(ends, device=device),
        ends=ends,
        _expected={},
    )
    training = make_training(lookup, "rowwise_adagrad", pooling=pooling)
    training.verify()
    # What the allocator hands out next.
    nans = [torch.full((400 * 3,), torch.nan, device=device) for _ in range(8)]
    del nans
    gradient = training.sample_weights_gradient()
    assert gradient.shape == lookup.indices.shape
    assert (gradient[:150] == 0).all()
    assert (gradient[1050:] == 0).all()
    assert gradient[150:1050].all()


def test_absent_and_empty_optional_tensors(device):
    """FBGEMM 1610, 1599."""
    lookup = lookup_of(device, torch.full((40,), 3))
    training = make_training(lookup, "sgd")
    before = training.snapshot()
    training.verify()
    right = training.snapshot()
    empty = torch.empty(0, device=device)
    names = ("momentum1", "momentum2", "per_sample_weights", "gradient_scale", "found_inf")
    training.restore(before)
    training.run(
        **dict.fromkeys(names, empty),
        step=empty.long(),
        vbe_bag_offsets=empty.long(),
        vbe_output_offsets=empty.long(),
        transposed=empty.int(),
    )
    assert training.equals(right)


# --- numbers


@pytest.mark.parametrize("decay", ["none", "decoupled"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("small_tables", ["always", "never"])
@pytest.mark.parametrize("rows", [9, 60], ids=["long-runs", "short-runs"])
def test_an_infinite_weight_stays_alone_without_l2_decay(
    rows, small_tables, optimizer, decay, device
):
    lengths = torch.full((1200,), 3)
    lookup = lookup_of(device, lengths, rows=(rows,), dims=(64,), dtype=torch.float16)
    training = make_training(lookup, make_optimizer(optimizer, decay))
    for table in training.tables():
        table[5, 3] = torch.inf
    training.run(small_tables=small_tables)
    for table in training.tables():
        assert table[5, 3] == torch.inf
        assert table.isfinite().sum() == table.numel() - 1
    for views in training.states().values():
        assert all(view.isfinite().all() for view in views)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_features_that_look_up_one_row(optimizer, dtype, pooling, device):
    """torchrec 3728."""
    lookup = lookup_of(
        device, torch.tensor([1, 1]), rows=(5,), dims=(8,), features=(0, 0), dtype=dtype
    )
    lookup.indices.fill_(3)
    training = make_training(lookup, optimizer, pooling=pooling)
    assert training.grad_output.shape == (1, 16)
    training.verify()


@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
def test_gradient_of_sample_weights(dtype, device):
    """torchrec 4602: B = 1, D = 4, index 2."""
    lookup = lookup_of(device, torch.tensor([1]), rows=(5,), dims=(4,), dtype=dtype)
    lookup.indices.fill_(2)
    training = make_training(lookup, "sgd")
    row = training.tables()[0][2].float()
    torch.testing.assert_close(
        training.sample_weights_gradient(), (training.grad_output @ row).view(1)
    )


@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_index_0(optimizer, dtype, device):
    """FBGEMM 5732: 64 bags."""
    lookup = lookup_of(device, torch.ones(64).long(), rows=(10,), dims=(8,), dtype=dtype)
    lookup.indices.zero_()
    make_training(lookup, optimizer).verify()


@pytest.mark.parametrize("dim", [1, 2, 4, 8, 16, 31])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_narrow_rows_with_runs_over_32(optimizer, dim, device):
    """FBGEMM 2509."""
    make_training(run_lookup(device, (33, 64, 300), dim), optimizer).verify()


@pytest.mark.parametrize("padding", [0, None], ids=["dense", "padded"])
@pytest.mark.parametrize("length", range(1, 41))
def test_weighted_bags_of_every_length(length, padding, device):
    """FBGEMM 4006: not a multiple of any unroll factor; in buckets of every width."""
    dims = (15, 64, 300)
    lookup = lookup_of(
        device,
        torch.full((3 * 5,), length),
        rows=(50, 50, 50),
        dims=dims,
        dtype=torch.float16,
        padding=padding,
        weighted=True,
    )
    training = make_training(lookup, "rowwise_adagrad", pooling=("sum", "mean")[length % 2])
    training.verify()
    assert not training.sample_weights_faults()


@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_id_many_times_gives_equal_bits(optimizer, dtype, device):
    """torchrec 1298, FBGEMM 5773."""
    lookup = lookup_of(
        device, torch.full((64,), 50), rows=(20,), dims=(8,), dtype=dtype, weighted=True
    )
    lookup.indices[::2] = 7
    training = make_training(lookup, optimizer)
    before = training.snapshot()
    training.verify()
    first = training.snapshot()
    for _ in range(4):
        training.restore(before)
        training.run()
        assert training.equals(first)


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equal_bits_over_five_runs_whether_hoisted_or_not(optimizer, weighted, device):
    dims = (16, 33, 64, 128, 256, 600)
    lookup = lookup_of(
        device,
        random_lengths(len(dims) * 512, 20),
        rows=(500,) * len(dims),
        dims=dims,
        dtype=torch.float16,
        weighted=weighted,
        pruned=0.02,
    )
    make_popular(lookup)
    training = make_training(lookup, optimizer, grad_dtype=torch.float16)
    before = training.snapshot()
    training.verify()
    first = training.snapshot()
    transposed = training.transpose()
    for hoisted in (None, None, None, None, transposed, transposed):
        training.restore(before)
        training.run(transposed=hoisted)
        assert training.equals(first)


@pytest.mark.parametrize("kind", ["plain", "weighted", "mean"])
@pytest.mark.parametrize("dim", [8, 61, 128, 300])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_run_lengths_around_every_threshold(optimizer, dim, kind, device):
    lookup = run_lookup(device, RUN_LENGTHS, dim, weighted=kind == "weighted")
    pooling = "mean" if kind == "mean" else "sum"
    training = make_training(lookup, optimizer, pooling=pooling)
    assert transpose_faults(training) == []


@pytest.mark.parametrize("neighbours", [(), (1, CHUNK, 3), (5000, 1, 1)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_of_100000(optimizer, neighbours, device):
    lookup = run_lookup(device, (100_000, *neighbours), 24, dtype=torch.float16)
    training = make_training(
        lookup, make_optimizer(optimizer, learning_rate=0.01), grad_dtype=torch.float16
    )
    assert transpose_faults(training) == []


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize("batch", [1152, 262_144])
def test_long_segments(batch, optimizer, device):
    """torchrec's test of them: T = 2, E = 10, L of 1 to 4."""
    lengths = 1 + torch.arange(2 * batch) % 4
    lookup = lookup_of(device, lengths, rows=(10, 10), dims=(4, 4))
    make_training(lookup, make_optimizer(optimizer, learning_rate=0.01)).verify()


def test_many_rows_that_are_looked_up_once(device):
    """Nearly all runs have one lookup, and every pass of the sort has many tiles."""
    lookup = lookup_of(
        device,
        torch.full((3 * 100_000,), 4),
        rows=(3_000_000, 70_000, 400_000),
        dims=(4, 16, 8),
        dtype=torch.float16,
        pruned=0.01,
    )
    training = make_training(lookup, "rowwise_adagrad", grad_dtype=torch.float16)
    assert transpose_faults(training) == []


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_decay_and_clipping_once_per_row(optimizer, decay, device):
    """pytorch 44792: a row that occurs 5 times is as one that occurs once with the sum of the gradients."""
    numbers = make_optimizer(optimizer, decay)
    grad = torch.tensor([[1.0, -2.0, 0.25, 3.0]], device=device)
    trainings = []
    for length, given in ((5, grad), (1, grad.clamp(-0.5, 0.5) * 5)):
        lookup = lookup_of(device, torch.tensor([length]), rows=(3,), dims=(4,))
        lookup.indices.fill_(1)
        clip = 0.5 if length == 5 else 0.0
        trainings.append(make_training(lookup, numbers, grad_output=given, gradient_clip=clip))
    many, once = trainings
    once.run()
    many.verify()
    for actual, expected in zip(many.mutated(), once.mutated(), strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.float16], ids=str)
def test_clipping_keeps_nan(grad_dtype, scaled, device):
    """In a short and in a long run; infinities are clipped."""
    lookup = run_lookup(device, (1, 200), 4, dtype=torch.float16)
    scale = 4.0 if scaled else 1.0
    grad = torch.zeros(lookup.bag_counts[0], 4, device=device)
    grad[:] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])
    training = make_training(
        lookup,
        make_optimizer("sgd", learning_rate=1.0 / 64),
        grad_output=grad.to(grad_dtype),
        gradient_clip=0.5,
        gradient_scale=torch.tensor([scale], device=device) if scaled else None,
    )
    before = training.tables()[0].float().clone()
    training.run()
    moved = before - training.tables()[0].float()
    for row, count in ((0, 1), (1, 200)):
        step = count * 0.5 / 64
        wanted = torch.tensor([math.nan, step, -step, 0.0], device=device)
        torch.testing.assert_close(moved[row], wanted, equal_nan=True, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_weights_are_rounded_once_to_the_nearest(dtype, device):
    lookup = lookup_of(device, torch.tensor([1, 1, 1]), rows=(4,), dims=(2048,), dtype=dtype)
    lookup.indices.copy_(torch.tensor([0, 1, 3]))
    training = make_training(lookup, make_optimizer("sgd", learning_rate=0.5))
    rows = training.tables()[0][[0, 1, 3]].float()
    training.run()
    wanted = (rows - 0.5 * training.grad_output).to(dtype)
    assert same_bits(training.tables()[0][[0, 1, 3]], wanted)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_zero_gradient_still_takes_a_step(optimizer, device):
    lookup = lookup_of(device, torch.tensor([2, 1]), rows=(5,), dims=(8,))
    training = make_training(
        lookup,
        make_optimizer(optimizer, "decoupled"),
        grad_output=torch.zeros(2, 8, device=device),
    )
    before = training.tables()[0][lookup.indices].clone()
    training.verify()
    assert not torch.equal(training.tables()[0][lookup.indices], before)


@pytest.mark.parametrize("longest", [2, 40])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_found_inf_changes_nothing(optimizer, longest, device):
    lookup = lookup_of(device, random_lengths(40, longest), rows=(3, 4))
    numbers = make_optimizer(optimizer, learning_rate=0.005)
    training = make_training(lookup, numbers, found_inf=torch.ones(1, device=device))
    before = training.snapshot()
    training.run()
    assert training.equals(before)
    training.options["found_inf"].zero_()
    training.verify()


# --- gradients of any layout


@pytest.mark.parametrize("grad_dtype", DTYPE_LIST, ids=str)
@pytest.mark.parametrize(
    "layout", ["expanded", "row", "transposed", "sliced", "narrowed", "off by one"]
)
@pytest.mark.parametrize("dims", [(64, 128), (8, 5)], ids=["vectors", "odd"])
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
def test_gradients_of_any_layout(optimizer, dims, layout, grad_dtype, device):
    """FBGEMM 1212, 4041: sum().backward(), transposed, sliced, a data pointer off by one element."""
    lookup = lookup_of(
        device, random_lengths(2 * 60, 20), rows=(10, 7), dims=dims, dtype=torch.float16
    )
    batch, width = 60, sum(dims)
    dense = make_gradient(lookup, grad_dtype)
    grad = {
        "expanded": lambda: torch.ones((), dtype=grad_dtype, device=device).expand(batch, width),
        "row": lambda: dense[:1].expand(batch, width),
        "transposed": lambda: dense.t().contiguous().t(),
        "sliced": lambda: torch.cat([dense, dense], dim=1)[:, 3 : 3 + width],
        "narrowed": lambda: torch.cat([dense, dense, dense])[7 : 7 + batch],
        "off by one": lambda: torch.cat([dense.new_zeros(1), dense.flatten()])[1:].view(
            batch, width
        ),
    }[layout]()
    training = make_training(lookup, optimizer, grad_output=grad)
    contiguous = make_training(lookup, optimizer, grad_output=grad.clone().contiguous())
    training.verify()
    contiguous.verify()
    assert not training.sample_weights_faults()
    for actual, expected in zip(training.mutated(), contiguous.mutated(), strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True)


def test_weights_and_state_one_element_off(device):
    """Everything aligned but a pointer: the numbers stay."""
    for misalign, optimizer in itertools.product((0, 1), ("rowwise_adagrad", "adagrad", "adam")):
        tables = make_tables((50, 60), (64, 128), torch.float16, device, misalign=misalign)
        lookup = make_lookup(tables, (0, 1), installed.buckets(), random_lengths(80, 20))
        make_popular(lookup)
        training = make_training(lookup, optimizer)
        assert training.lookup.tables.weights.data_ptr() % 16 == 2 * misalign
        training.verify()
        assert training.momentum1 is not None
        shifted = torch.cat([training.momentum1[:1], training.momentum1])[1:]
        assert shifted.data_ptr() % 16 != 0
        replace(training, momentum1=shifted).verify()


def test_mixed_dims_and_shared_tables(device):
    """Aligned and generic features of many buckets in one call, features on tables in no order."""
    dims = (128, 3, 16, 100, 512, 64, 24, 2048, 1)
    order = (4, 0, 8, 3, 2, 6, 5, 1, 7, 0, 3)
    tables = make_tables([40 + t for t in range(len(dims))], dims, torch.bfloat16, device)
    for number, (longest, vbe) in enumerate(itertools.product((2, 15), (False, True))):
        batch_sizes = [[t % 4, 17 - t % 3] for t in range(len(order))] if vbe else None
        bags = sum(map(sum, batch_sizes)) if batch_sizes else 33 * len(order)
        lookup = make_lookup(
            tables,
            order,
            installed.buckets(),
            random_lengths(bags, longest),
            weighted=True,
            batch_sizes=batch_sizes,
            pruned=0.05,
        )
        training = make_training(lookup, OPTIMIZERS[number], grad_dtype=torch.bfloat16)
        assert transpose_faults(training) == []
        assert not training.sample_weights_faults()


@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.float16], ids=str)
def test_rows_of_a_variable_batch_start_anywhere(grad_dtype, device):
    """Aligned by its columns, yet bags of the narrow features shift the rows of the gradient."""
    tables = make_tables((50, 50, 60), (4, 4, 64), torch.float16, device)
    sizes = [[1, 2], [2, 3], [30, 5]]
    lookup = make_lookup(
        tables, (0, 1, 2), installed.buckets(), random_lengths(43, 30), batch_sizes=sizes
    )
    training = make_training(lookup, "rowwise_adagrad", grad_dtype=grad_dtype)
    training.verify()
    assert not training.sample_weights_faults()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_variable_batch_of_whole_vectors(optimizer, device):
    """torchrec 2502: here rows of the gradient can be read as vectors."""
    lookup = lookup_of(
        device,
        random_lengths(9 * 8, 30),
        dims=(64, 128),
        dtype=torch.float16,
        batch_sizes=[[24, 0], [8, 40]],
    )
    training = make_training(lookup, optimizer, grad_dtype=torch.float16)
    assert transpose_faults(training) == []
    assert not training.sample_weights_faults()


# --- indices


@pytest.mark.parametrize("offset_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_indices_and_offsets_of_either_width(index_dtype, offset_dtype, device):
    """torchrec 2263, FBGEMM 1969."""
    lookup = lookup_of(
        device,
        random_lengths(40, 9),
        dtype=torch.float16,
        index_dtype=index_dtype,
        offset_dtype=offset_dtype,
    )
    training = make_training(lookup, "rowwise_adagrad")
    assert transpose_faults(training) == []
    assert not training.sample_weights_faults()


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_pruned_rows_get_no_gradient(pooling, device):
    """-1 in the middle of a bag, and nothing but -1."""
    lookup = lookup_of(device, torch.full((40,), 7), pruned=0.3)
    training = make_training(lookup, "rowwise_adagrad", pooling=pooling)
    assert transpose_faults(training) == []
    assert not training.sample_weights_faults()
    training.lookup.indices.fill_(-1)
    before = training.snapshot()
    training.run()
    assert training.equals(before)
    assert not training.sample_weights_gradient().any()
    assert take_apart(training.transpose(), training).run_slots == [2]


@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
@pytest.mark.parametrize("padding", [0, None], ids=["dense", "padded"])
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 127])
def test_any_dim(dim, padding, dtype, device):
    """torchrec 1495, 3187."""
    lookup = lookup_of(
        device, random_lengths(2 * 137, 9), dims=(dim, dim), dtype=dtype, padding=padding
    )
    make_popular(lookup)
    for optimizer in OPTIMIZERS:
        make_training(lookup, optimizer, grad_dtype=dtype).verify()
    assert not make_training(lookup, "sgd", grad_dtype=dtype).sample_weights_faults()


def test_strided_indices_and_offsets(device):
    lookup = lookup_of(device, random_lengths(40, 9), weighted=True)

    def spread(tensor: torch.Tensor | None) -> torch.Tensor:
        assert tensor is not None
        return torch.stack([tensor, tensor + 1], dim=1)[:, 0]

    strided = replace(
        lookup,
        indices=spread(lookup.indices),
        offsets=spread(lookup.offsets),
        per_sample_weights=spread(lookup.per_sample_weights),
        _expected={},
    )
    training = make_training(strided, "rowwise_adagrad")
    assert transpose_faults(training) == []
    assert not training.sample_weights_faults()


# --- beside the CPU operators


def on_cpu(training: Training) -> Training:
    """The same training on the CPU."""
    cpu = torch.device("cpu")

    def moved(value: Any) -> Any:
        return value.to(cpu) if isinstance(value, torch.Tensor) else value

    lookup = training.lookup
    vbe = lookup.vbe
    if vbe is not None:
        vbe = replace(
            vbe,
            bag_offsets=vbe.bag_offsets.to(cpu),
            output_offsets=vbe.output_offsets.to(cpu),
        )
    lookup = replace(
        lookup,
        tables=replace(lookup.tables, weights=lookup.tables.weights.to(cpu, copy=True)),
        features=lookup.features.to(cpu),
        indices=lookup.indices.to(cpu),
        offsets=lookup.offsets.to(cpu),
        per_sample_weights=moved(lookup.per_sample_weights),
        vbe=vbe,
        _expected={},
    )

    def copied(state: torch.Tensor | None) -> torch.Tensor | None:
        return None if state is None else state.to(cpu, copy=True)

    return replace(
        training,
        lookup=lookup,
        grad_output=training.grad_output.to(cpu),
        learning_rate=training.learning_rate.to(cpu),
        momentum1=copied(training.momentum1),
        momentum2=copied(training.momentum2),
        step=copied(training.step),
        options={name: moved(value) for name, value in training.options.items()},
    )


@pytest.mark.parametrize("wide_keys", [False, True], ids=["32-bit keys", "64-bit keys"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("vbe", [False, True], ids=["batch", "vbe"])
@pytest.mark.parametrize("kind", ["plain", "weighted", "mean", "weighted mean"])
def test_transposed_bits_are_those_of_the_cpu(kind, vbe, index_dtype, wide_keys, device):
    batch_sizes = [[911, 4], [9, 0], [0, 600], [50, 50]] if vbe else None
    bags = sum(map(sum, batch_sizes)) if batch_sizes else 4 * 500
    lookup = lookup_of(
        device,
        random_lengths(bags, 12),
        rows=(5000, 300, 9),
        dims=(16, 24, 5),
        features=(0, 1, 0, 2),
        index_dtype=index_dtype,
        weighted="weighted" in kind,
        batch_sizes=batch_sizes,
        pruned=0.1,
    )
    lookup.indices[lookup.indices % 5 == 0] = 3
    if wide_keys:
        lookup = beyond_32_bits(lookup)
    pooling = "mean" if "mean" in kind else "sum"
    training = make_training(lookup, "sgd", pooling=pooling)
    actual = take_apart(training.transpose(), training)
    beside = on_cpu(training)
    assert actual.differences(take_apart(beside.transpose(), beside)) == []
    assert actual.differences(reference(training)) == []


@pytest.mark.parametrize("vbe", [False, True], ids=["batch", "vbe"])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_cpu_and_cuda_agree(optimizer, dtype, pooling, vbe, device):
    batch_sizes = [[211, 4], [9, 0], [0, 96]] if vbe else None
    bags = sum(map(sum, batch_sizes)) if batch_sizes else 3 * 100
    lookup = lookup_of(
        device,
        random_lengths(bags, 20),
        rows=(50, 60, 9),
        dims=(64, 20, 300),
        dtype=dtype,
        weighted=True,
        batch_sizes=batch_sizes,
        pruned=0.1,
    )
    training = make_training(
        lookup,
        make_optimizer(optimizer, "l2"),
        pooling=pooling,
        gradient_clip=1.5,
        gradient_scale=torch.tensor([2.0], device=device),
    )
    beside = on_cpu(training)
    beside.verify()
    training.verify()


@pytest.mark.parametrize("vbe", [False, True], ids=["batch", "vbe"])
@pytest.mark.parametrize("present", [False, True], ids=["absent", "present"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_opcheck(optimizer, present, vbe, device):
    """FBGEMM 3240, 3755, 3368: the three operators, with optional arguments absent and present, dynamic N and B."""
    lookup = lookup_of(
        device,
        random_lengths(8, 9),
        weighted=present,
        batch_sizes=[[1, 2], [5, 0]] if vbe else None,
    )
    options: dict[str, Any] = {}
    if present:
        options["gradient_scale"] = torch.full((1,), 2.0, device=device)
        options["found_inf"] = torch.zeros(1, device=device)
    training = make_training(lookup, optimizer, **options)
    # opcheck compares with ==, and the gaps between rows hold NaN.
    for tensor in training.mutated():
        tensor.nan_to_num_()
    if present:
        training.options["transposed"] = training.transpose()
    check = torch.library.opcheck
    check(torch.ops.tbe_aot.backward_update.default, (), training.arguments())
    if optimizer != "sgd":
        return
    arguments = training.lookup_arguments()
    check(
        torch.ops.tbe_aot.per_sample_weights_gradient.default,
        (training.grad_output, training.lookup.tables.weights),
        arguments,
    )
    arguments["per_sample_weights"] = lookup.per_sample_weights
    check(
        torch.ops.tbe_aot.transpose_indices.default,
        (),
        arguments,
        # What is unspecified may differ from call to call.
        test_utils=("test_schema", "test_faketensor"),
    )


# --- refused


def damages(training: Training) -> list[tuple[dict[str, Any], str]]:
    """Arguments that are wrong, with what the error says."""
    grad, weights = training.grad_output, training.lookup.tables.weights
    device = grad.device
    words = training.transpose()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"grad_output": grad[:, :-1]}, "grad_output has shape"),
        ({"grad_output": grad[:-1]}, "grad_output has shape"),
        ({"grad_output": grad.double()}, "grad_output is float64"),
        ({"weights": weights[:-1]}, "weights"),
        ({"offsets": training.lookup.offsets[:-1]}, "offsets has"),
        ({"optimizer": "lamb"}, "optimizer is"),
        ({"per_sample_weights": torch.ones(3, device=device)}, "per_sample_weights has 3"),
        ({"learning_rate": torch.ones(2, device=device)}, "learning_rate"),
        ({"pooling": "max"}, "pooling"),
        ({"weight_decay_mode": "L2"}, "weight_decay_mode"),
        ({"gradient_clip": -1.0}, "gradient_clip"),
        ({"transposed": words[:-1]}, "transposed has"),
        ({"transposed": words.long()}, "transposed is int64"),
    ]
    if training.momentum1 is not None:
        changes.append(({"momentum1": training.momentum1[:-1]}, "momentum1"))
        changes.append(({"momentum1": None}, "momentum1"))
    if training.step is not None:
        changes.append(({"step": None}, "step"))
    return changes


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_error_changes_nothing(optimizer, device):
    training = make_training(lookup_of(device, random_lengths(40, 20), weighted=True), optimizer)
    before = training.snapshot()
    for change, message in damages(training):
        with pytest.raises(RuntimeError, match=message):
            training.run(**change)
        assert training.equals(before), change
    training.verify()


MOVED = (
    "grad_output",
    "features",
    "indices",
    "offsets",
    "learning_rate",
    "momentum1",
    "momentum2",
    "step",
    "per_sample_weights",
    "gradient_scale",
    "found_inf",
    "vbe_bag_offsets",
    "vbe_output_offsets",
    "transposed",
)


@pytest.mark.parametrize("name", MOVED)
def test_a_tensor_on_the_cpu_beside_cuda_weights_is_named(name, cuda):
    """torchrec 995."""
    lookup = lookup_of(cuda, random_lengths(9, 9), weighted=True, batch_sizes=[[2, 2], [3, 2]])
    training = make_training(
        lookup,
        "adam",
        gradient_scale=torch.ones(1, device=cuda),
        found_inf=torch.zeros(1, device=cuda),
    )
    training.options["transposed"] = training.transpose()
    before = training.snapshot()
    moved = training.arguments()[name].cpu()
    message = f"tbe_aot::backward_update: {name} is on cpu, expected {cuda}, the device of weights"
    with pytest.raises(RuntimeError, match=message):
        training.run(**{name: moved})
    assert training.equals(before)


def test_first_backward_inside_a_capture_after_preload():
    """vllm 36587; a process of its own, because nothing may be loaded before."""
    run_program("first_backward_in_capture", "0")
