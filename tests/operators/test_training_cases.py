"""Public reports of what went wrong in the backward of such kernels, as tests on a CPU; named by project and issue."""

from __future__ import annotations

import pytest
import torch

import tbe_aot
from tests.operators.support import INDEX_DTYPES, WEIGHT_DTYPES, make_lookup
from tests.operators.training import (
    DECAYS,
    OPTIMIZERS,
    make_grad,
    make_optimizer,
    make_training,
    same_bits,
)


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_fbgemm_3877_rows_beyond_2_to_the_31(dtype, index_dtype):
    # Of the table, only the pages that are written or read take memory.
    dim = 1024
    rows = 2**31 // dim + 1
    metadata = tbe_aot.make_features([tbe_aot.TableSpec("t", rows, dim)], weights_dtype=dtype)
    weights = torch.zeros(metadata.weights_numel, dtype=dtype)
    weights[-dim:] = 1
    shared = (metadata.features, metadata.layout, torch.tensor([rows - 1], dtype=index_dtype))
    offsets = torch.tensor([0, 1], dtype=index_dtype)
    grad = torch.full((1, dim), 0.5)
    gradient = torch.ops.tbe_aot.per_sample_weights_gradient(grad, weights, *shared, offsets)
    assert gradient.tolist() == [dim / 2]
    rate = torch.ones(1)
    momentum = torch.zeros(rows)
    arguments = (grad, weights, *shared, offsets)
    torch.ops.tbe_aot.backward_update(*arguments, "rowwise_adagrad", rate, momentum)
    assert momentum[-1] == 0.25
    assert not momentum[:-1].any()
    assert not weights[-dim:].any()


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_torchrec_3728_two_features_that_look_up_one_row(optimizer, dtype, pooling):
    lookup = make_lookup([8], [5], [1, 1], feature_tables=[0, 0], dtype=dtype)
    lookup.indices.fill_(3)
    training = make_training(lookup, optimizer, pooling=pooling)
    assert training.grad_output.shape == (1, 16)
    training.verify()
    plain = make_training(lookup, make_optimizer("sgd", learning_rate=1.0))
    row = plain.lookup.tables[0][3].clone()
    plain.run()
    slices = plain.grad_output[0, :8] + plain.grad_output[0, 8:]
    torch.testing.assert_close(plain.lookup.tables[0][3], (row.float() - slices).to(dtype))


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_torchrec_4602_gradient_of_sample_weights(dtype):
    lookup = make_lookup([4], [5], [1], dtype=dtype)
    lookup.indices.fill_(2)
    grad = make_grad(lookup)
    shared = (lookup.metadata.features, lookup.metadata.layout, lookup.indices, lookup.offsets)
    result = torch.ops.tbe_aot.per_sample_weights_gradient(grad, lookup.weights, *shared)
    torch.testing.assert_close(result, (grad @ lookup.tables[0][2].float()).view(1))


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fbgemm_5732_every_index_0(optimizer, dtype):
    lookup = make_lookup([8], [10], [1] * 64, dtype=dtype)
    lookup.indices.zero_()
    make_training(lookup, optimizer).verify()


@pytest.mark.parametrize("dim", [1, 2, 4, 8, 16, 31])
@pytest.mark.parametrize("length", [33, 64, 300])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fbgemm_2509_narrow_rows_with_runs_over_32(optimizer, length, dim):
    lookup = make_lookup([dim], [2], [1] * length)
    lookup.indices.fill_(1)
    make_training(lookup, optimizer).verify()


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_torchrec_1298_fbgemm_5773_one_id_many_times_gives_equal_bits(optimizer, dtype):
    lookup = make_lookup([8], [20], [50] * 64, weighted=True, dtype=dtype)
    lookup.indices[::2] = 7
    first = make_training(lookup, optimizer)
    first.run()
    for _ in range(4):
        again = make_training(lookup, optimizer)
        again.run()
        assert again.equals(first.mutated())


@pytest.mark.parametrize("grad_dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("layout", ["expanded", "row", "transposed", "sliced", "off by one"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fbgemm_1212_4041_gradients_of_any_layout(optimizer, layout, grad_dtype):
    lookup = make_lookup([8, 5], [10, 7], [3, 0, 1, 2, 4, 1])
    batch, width = 3, 13
    dense = make_grad(lookup, grad_dtype)
    grad = {
        "expanded": lambda: torch.ones((), dtype=grad_dtype).expand(batch, width),
        "row": lambda: dense[:1].expand(batch, width),
        "transposed": lambda: dense.t().contiguous().t(),
        "sliced": lambda: torch.cat([dense, dense], dim=1)[:, 3 : 3 + width],
        "off by one": lambda: torch.cat([dense.new_zeros(1), dense.flatten()])[1:].view(
            batch, width
        ),
    }[layout]()
    training = make_training(lookup, optimizer, grad_output=grad)
    contiguous = make_training(lookup, optimizer, grad_output=grad.clone().contiguous())
    training.verify()
    contiguous.run()
    assert training.equals(contiguous.mutated())
    shared = (lookup.metadata.features, lookup.metadata.layout, lookup.indices, lookup.offsets)
    gradient = torch.ops.tbe_aot.per_sample_weights_gradient
    assert same_bits(
        gradient(grad, lookup.weights, *shared),
        gradient(grad.clone().contiguous(), lookup.weights, *shared),
    )


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_long_segments(optimizer):
    lengths = [1 + i % 4 for i in range(2 * 1152)]
    make_training(make_lookup([4, 4], [10, 10], lengths), optimizer).verify()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_long_segments_of_a_large_batch(optimizer):
    """The same sums from index_add_, in float64: the oracle's loops would take minutes."""
    batch = 262_144
    lookup = make_lookup([4, 4], [10, 10], [1 + i % 4 for i in range(2 * batch)])
    training = make_training(lookup, optimizer)
    bags = torch.repeat_interleave(torch.arange(2 * batch), lookup.offsets.diff())
    tables = [table.double() for table in training.lookup.tables]
    states = {name: [v.double() for v in views] for name, views in training.states().items()}
    for f, gradient in enumerate(training.grad_output.double().split(4, dim=1)):
        mine = bags // batch == f
        sums = torch.zeros(10, 4, dtype=torch.float64)
        sums.index_add_(0, lookup.indices[mine], gradient[bags[mine] % batch])
        for row in range(10):
            state = {name: views[f][row] for name, views in states.items()}
            tables[f][row] = training.optimizer.step(tables[f][row], sums[row], state, 1)
    training.run()
    for found, wanted in zip(training.lookup.tables, tables, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    for name, views in training.states().items():
        for found, wanted in zip(views, states[name], strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("lengths", [[0, 0, 0, 0], []])
def test_fbgemm_1613_3750_torchrec_2773_nothing_looked_up_touches_nothing(optimizer, lengths):
    lookup = make_lookup([8, 5], [10, 7], lengths, weighted=True)
    training = make_training(lookup, optimizer)
    tables = training.lookup.weights.clone()
    training.verify()
    assert same_bits(training.lookup.weights, tables)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pytorch_44792_decay_and_clipping_once_per_row(optimizer, decay):
    """A row that occurs 5 times is as one that occurs once with the sum of the gradients."""
    numbers = make_optimizer(optimizer, decay)
    often = make_lookup([4], [3], [5])
    once = make_lookup([4], [3], [1])
    often.indices.fill_(1)
    once.indices.fill_(1)
    grad = torch.tensor([[1.0, -2.0, 0.25, 3.0]])
    many = make_training(often, numbers, grad_output=grad, gradient_clip=0.5)
    single = make_training(once, numbers, grad_output=grad.clamp(-0.5, 0.5) * 5)
    many.run()
    single.run()
    assert many.equals(single.mutated())
    many.verify()
