"""backward_update and per_sample_weights_gradient on a CPU against the float64 oracle."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import oracle
from tests.operators.support import INDEX_DTYPES, WEIGHT_DTYPES, Lookup, make_lookup
from tests.operators.training import (
    DECAYS,
    OPTIMIZERS,
    Training,
    make_grad,
    make_optimizer,
    make_training,
    same_bits,
    vbe_of,
)

LENGTHS = [3, 0, 1, 2, 9, 4]
OPCHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


def per_sample_weights_gradient(
    lookup: Lookup, grad: torch.Tensor, pooling: str = "sum"
) -> torch.Tensor:
    vbe: tuple[Any, ...] = () if lookup.batch_sizes is None else vbe_of(lookup)[:3]
    result: torch.Tensor = torch.ops.tbe_aot.per_sample_weights_gradient(
        grad,
        lookup.weights,
        lookup.metadata.features,
        lookup.metadata.layout,
        lookup.indices,
        lookup.offsets,
        pooling,
        *vbe,
    )
    return result


def verify_sample_weights(
    lookup: Lookup, grad: torch.Tensor | None = None, pooling: str = "sum"
) -> None:
    grad = make_grad(lookup) if grad is None else grad
    expected = oracle.per_sample_weights_gradient(
        grad, lookup.features(), lookup.indices, lookup.offsets, pooling, lookup.batch_sizes
    )
    actual = per_sample_weights_gradient(lookup, grad, pooling)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("grad_dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_and_dtype(optimizer, dtype, grad_dtype, weighted, pooling):
    lookup = make_lookup(
        [8, 5, 32], [10, 7, 20], LENGTHS, dtype=dtype, weighted=weighted, pruned=0.2
    )
    make_training(lookup, optimizer, grad_dtype=grad_dtype, pooling=pooling).verify()
    verify_sample_weights(lookup, make_grad(lookup, grad_dtype), pooling)


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_decay(optimizer, decay, dtype):
    lookup = make_lookup([8, 5, 32], [10, 7, 20], LENGTHS, dtype=dtype)
    make_training(lookup, make_optimizer(optimizer, decay)).verify()


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("decay", ["none", "decoupled"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_infinite_weight_stays_alone_without_l2_decay(optimizer, decay, dtype):
    lookup = make_lookup([8], [10], [2] * 30, dtype=dtype)
    lookup.indices[7] = 0
    lookup.weights[3] = torch.inf
    training = make_training(lookup, make_optimizer(optimizer, decay))
    torch.ops.tbe_aot.backward_update(**training.arguments())
    assert lookup.weights[3] == torch.inf
    assert int((~lookup.weights.isfinite()).sum()) == 1
    for state in (training.momentum1, training.momentum2):
        assert state is None or state.isfinite().all()


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("offset_dtype", INDEX_DTYPES)
def test_indices_and_offsets_of_either_width(index_dtype, offset_dtype):
    lookup = make_lookup(
        [8, 5], [10, 7], [3, 0, 1, 2], index_dtype=index_dtype, offset_dtype=offset_dtype
    )
    make_training(lookup, "rowwise_adagrad").verify()
    verify_sample_weights(lookup)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_features_that_share_a_table(optimizer, pooling):
    lookup = make_lookup(
        [8, 5],
        [6, 7],
        [3, 2, 1, 4, 5, 0, 2, 2],
        feature_tables=[0, 1, 0, 0],
        weighted=True,
        pruned=0.2,
    )
    make_training(lookup, optimizer, pooling=pooling).verify()
    verify_sample_weights(lookup, pooling=pooling)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("sizes", [[[3, 0], [1, 5]], [[0], [9]], [[2, 2, 0], [1, 4, 0]]])
def test_a_variable_batch(optimizer, pooling, sizes):
    lookup = make_lookup(
        [8, 5], [10, 10], [2, 0, 3, 1, 2, 2, 4, 1, 1], batch_sizes=sizes, weighted=True
    )
    make_training(lookup, optimizer, pooling=pooling).verify()
    verify_sample_weights(lookup, pooling=pooling)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 511, 512, 513])
def test_run_lengths_around_every_threshold(optimizer, length):
    lookup = make_lookup([8], [3], [length, 3, length // 2, 0], weighted=True)
    lookup.indices.fill_(1)
    make_training(lookup, optimizer, pooling="mean").verify()


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_a_run_of_100000(optimizer):
    lookup = make_lookup([4], [3], [1] * 100_000)
    lookup.indices.fill_(2)
    make_training(lookup, optimizer).verify()


def test_the_order_of_addition_is_the_documented_one():
    """Sums of less than 128 lookups in order; else of 128 each, the last one of all that are left, added in order."""
    for length in (127, 128, 255, 256, 600):
        lookup = make_lookup([4], [1], [1] * length)
        training = make_training(lookup, make_optimizer("sgd", learning_rate=1.0))
        total = torch.zeros(4)
        chunks = max(length // 128, 1)
        for chunk in range(chunks):
            end = length if chunk + 1 == chunks else (chunk + 1) * 128
            partial = torch.zeros(4)
            for row in training.grad_output[chunk * 128 : end]:
                partial += row
            total += partial
        expected = lookup.tables[0][0] - total
        training.run()
        assert same_bits(training.lookup.tables[0][0], expected)


def test_half_precision_weights_are_rounded_once_to_the_nearest():
    for dtype in (torch.float16, torch.bfloat16):
        lookup = make_lookup([2048], [4], [1, 1, 1], dtype=dtype)
        training = make_training(lookup, make_optimizer("sgd", learning_rate=0.5))
        lookup.indices.copy_(torch.tensor([0, 1, 3]))
        expected = (lookup.tables[0][[0, 1, 3]].float() - 0.5 * training.grad_output).to(dtype)
        training.run()
        assert same_bits(training.lookup.tables[0][[0, 1, 3]], expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equal_bits_over_5_runs(optimizer):
    torch.manual_seed(0)
    lookup = make_lookup([8, 16], [20, 300], [40] * 512, weighted=True)
    first = make_training(lookup, optimizer)
    first.run()
    for _ in range(4):
        again = make_training(lookup, optimizer)
        again.run()
        assert again.equals(first.mutated())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_number_of_threads_changes_no_bit(optimizer):
    lookup = make_lookup([16, 64], [20, 3000], [40] * 512, weighted=True)
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            training = make_training(lookup, optimizer)
            training.run()
            results.append(training)
    finally:
        torch.set_num_threads(threads)
    assert all(training.equals(results[0].mutated()) for training in results)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_zero_gradient_still_takes_a_step(optimizer):
    lookup = make_lookup([8], [5], [2, 1])
    training = make_training(
        lookup, make_optimizer(optimizer, "decoupled"), grad_output=torch.zeros(2, 8)
    )
    before = training.lookup.tables[0][lookup.indices].clone()
    training.verify()
    assert not torch.equal(training.lookup.tables[0][lookup.indices], before)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_are_unscaled_and_then_clipped(optimizer, scaled):
    lookup = make_lookup([8, 5], [10, 7], [3, 0, 1, 2], weighted=True)
    options: dict[str, Any] = {"gradient_scale": torch.tensor([1024.0])} if scaled else {}
    grad = make_grad(lookup) * (1024 if scaled else 1)
    for clip in (0.0, 0.25):
        make_training(lookup, optimizer, grad_output=grad, gradient_clip=clip, **options).verify()


def test_clipping_keeps_nan():
    lookup = make_lookup([4], [3], [1])
    grad = torch.tensor([[torch.nan, torch.inf, -torch.inf, 0]])
    training = make_training(
        lookup, make_optimizer("sgd", learning_rate=1.0), grad_output=grad, gradient_clip=0.5
    )
    before = training.lookup.tables[0][lookup.indices[0]].clone()
    training.run()
    moved = before - training.lookup.tables[0][lookup.indices[0]]
    torch.testing.assert_close(moved, torch.tensor([torch.nan, 0.5, -0.5, 0]), equal_nan=True)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_found_inf_changes_nothing(optimizer):
    lookup = make_lookup([8], [5], [2, 1])
    training = make_training(lookup, optimizer, found_inf=torch.ones(1))
    before = training.snapshot()
    training.run()
    assert training.equals(before)
    make_training(lookup, optimizer, found_inf=torch.zeros(1)).verify()


@pytest.mark.parametrize("sample_dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_per_sample_weights_of_any_floating_dtype(sample_dtype):
    lookup = make_lookup([8], [10], [3, 4], weighted=True)
    assert lookup.per_sample_weights is not None
    weights = lookup.per_sample_weights.to(sample_dtype)
    make_training(lookup.with_(per_sample_weights=weights), "sgd").verify()


def test_strided_indices_and_offsets():
    lookup = make_lookup([8, 3], [10, 10], [3, 1, 2, 5], weighted=True)

    def spread(tensor: torch.Tensor | None) -> torch.Tensor:
        assert tensor is not None
        wide = torch.full((2 * tensor.numel(),), 99, dtype=tensor.dtype)
        wide[::2] = tensor
        return wide[::2]

    strided = lookup.with_(
        indices=spread(lookup.indices),
        offsets=spread(lookup.offsets),
        per_sample_weights=spread(lookup.per_sample_weights),
    )
    make_training(strided, "rowwise_adagrad").verify()
    verify_sample_weights(strided)


def test_lookups_of_no_bag_change_nothing():
    lookup = make_lookup([4], [5], [3, 2]).with_(offsets=torch.tensor([1, 2, 4]))
    make_training(lookup, "sgd").verify()
    verify_sample_weights(lookup)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 127, 2048])
def test_odd_and_wide_rows(optimizer, dim):
    make_training(make_lookup([dim], [6], [3, 4, 1]), optimizer).verify()


@st.composite
def lookups(draw: st.DrawFn) -> tuple[Lookup, str, torch.dtype]:
    tables = draw(st.integers(1, 3))
    features = draw(st.lists(st.integers(0, tables - 1), min_size=1, max_size=4))
    ranks = draw(st.integers(1, 2))
    batch = draw(st.integers(0, 4))
    sizes = None
    bags = batch * len(features)
    if draw(st.booleans()):
        sizes = [[draw(st.integers(0, 3)) for _ in range(ranks)] for _ in features]
        bags = sum(map(sum, sizes))
    lookup = make_lookup(
        draw(st.lists(st.integers(1, 40), min_size=tables, max_size=tables)),
        draw(st.lists(st.integers(1, 6), min_size=tables, max_size=tables)),
        draw(st.lists(st.integers(0, 6), min_size=bags, max_size=bags)),
        feature_tables=features,
        dtype=draw(st.sampled_from(WEIGHT_DTYPES)),
        index_dtype=draw(st.sampled_from(INDEX_DTYPES)),
        weighted=draw(st.booleans()),
        batch_sizes=sizes,
        pruned=draw(st.sampled_from([0.0, 0.3])),
        seed=draw(st.integers(0, 100)),
    )
    return lookup, draw(st.sampled_from(["sum", "mean"])), draw(st.sampled_from(WEIGHT_DTYPES))


@settings(deadline=None, max_examples=150)
@given(lookups(), st.sampled_from(OPTIMIZERS), st.sampled_from(DECAYS))
def test_any_lookup(drawn, optimizer, decay):
    lookup, pooling, grad_dtype = drawn
    make_training(
        lookup, make_optimizer(optimizer, decay), grad_dtype=grad_dtype, pooling=pooling
    ).verify()
    verify_sample_weights(lookup, make_grad(lookup, grad_dtype), pooling)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("present", "vbe"), list(itertools.product([False, True], repeat=2)))
def test_fbgemm_3240_3755_3368_opcheck_backward_update(optimizer, present, vbe):
    sizes = [[1, 1], [2, 0]] if vbe else None
    lookup = make_lookup([8, 5], [9, 9], [1, 2, 0, 3], weighted=present, batch_sizes=sizes)
    lookup.weights.nan_to_num_()
    options: dict[str, Any] = {}
    if present:
        options = {
            "gradient_scale": torch.ones(1) * 2,
            "found_inf": torch.zeros(1),
            "rounding_seed": torch.zeros(1, dtype=torch.int64),
        }
    training = make_training(lookup, optimizer, **options)
    arguments = {
        name: value.clone().nan_to_num_() if isinstance(value, torch.Tensor) else value
        for name, value in training.arguments().items()
    }
    operator = torch.ops.tbe_aot.backward_update.default
    torch.library.opcheck(operator, (), arguments, test_utils=OPCHECKS)


@pytest.mark.parametrize("vbe", [False, True])
def test_fbgemm_3240_3755_3368_opcheck_per_sample_weights_gradient(vbe):
    sizes = [[1, 1], [2, 0]] if vbe else None
    lookup = make_lookup([8, 5], [9, 9], [1, 2, 0, 3], batch_sizes=sizes)
    arguments = (
        make_grad(lookup),
        lookup.weights.nan_to_num_(),
        lookup.metadata.features,
        lookup.metadata.layout,
        lookup.indices,
        lookup.offsets,
        "mean",
        *(vbe_of(lookup)[:3] if vbe else ()),
    )
    operator = torch.ops.tbe_aot.per_sample_weights_gradient.default
    torch.library.opcheck(operator, arguments, test_utils=OPCHECKS)


def bad_offsets(training: Training) -> dict[str, Any]:
    offsets = training.lookup.offsets.clone()
    offsets[-1] += 5
    return {"offsets": offsets}


def bad_rows(training: Training) -> dict[str, Any]:
    features = training.lookup.metadata.features.clone()
    features[1, 7] -= 1
    return {"features": features}


def bad_grad(training: Training) -> dict[str, Any]:
    return {"grad_output": training.grad_output[:, :-1]}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (bad_offsets, "offsets has 6 and 11 for feature 1, bag 1, expected a range within the 6"),
        (bad_rows, "features says that feature 1 has 9 global rows from 8 on"),
        (bad_grad, r"grad_output has shape \[2, 12\], expected \[2, 13\]"),
    ],
)
def test_an_error_changes_nothing(optimizer, change, message):
    lookup = make_lookup([8, 5], [9, 9], [1, 2, 0, 3])
    if change is bad_offsets:
        lookup = make_lookup([8, 5], [9, 9], [1, 2, 3, 0])
    training = make_training(lookup, optimizer)
    training.options.update(change(training))
    before = training.snapshot()
    with pytest.raises(RuntimeError, match=message):
        training.run()
    assert training.equals(before)


@pytest.mark.parametrize("position", [-1, 10_000])
def test_a_gradient_row_outside_of_the_gradient_changes_nothing(position):
    lookup = make_lookup([8, 5], [9, 9], [1, 2, 0, 3], batch_sizes=[[1, 1], [2, 0]])
    training = make_training(lookup, "adam")
    starts = vbe_of(lookup)[1].clone()
    starts[3] = position
    training.options["vbe_output_offsets"] = starts
    before = training.snapshot()
    with pytest.raises(RuntimeError, match="vbe_output_offsets puts feature 1, bag 1 outside"):
        training.run()
    assert training.equals(before)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_table_without_rows(optimizer):
    lookup = make_lookup([4, 8], [0, 3], [0, 0, 1, 2])
    make_training(lookup, optimizer).verify()
    only = make_lookup([4], [0], [0, 0])
    make_training(only, optimizer).verify()
