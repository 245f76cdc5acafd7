"""Small tables: against float64, and against the general kernels, at the limits and just outside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tbe_aot
from tests.gpu import installed
from tests.gpu.support import TOLERANCE, Lookup, make_lookup, make_tables, worst_error
from tests.gpu.training import OPTIMIZERS, Training, make_gradient, make_optimizer, make_training

CHOICES = ["auto", "always", "never"]


def lengths_of(mean: int, bags: int, seed: int = 0) -> torch.Tensor:
    """Lengths of bags, exactly ``mean`` on average."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 2 * mean + 1, (bags,), generator=generator)
    # What is missing or too much goes to or comes from the longest bags.
    while (rest := int(mean * bags - lengths.sum())) != 0:
        lengths[lengths.argmin() if rest > 0 else lengths.argmax()] += 1 if rest > 0 else -1
    return lengths


def draw(
    device: torch.device,
    rows: int = 64,
    dim: int = 128,
    dtype: torch.dtype = torch.float16,
    lengths: torch.Tensor | None = None,
) -> Lookup:
    tables = make_tables((rows,), (dim,), dtype, device)
    return make_lookup(
        tables, (0,), installed.buckets(), lengths_of(64, 777) if lengths is None else lengths
    )


def run(
    lookup: Lookup, pooling: str, choice: str, output_dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    arguments = lookup.arguments(pooling, output_dtype)
    result: torch.Tensor = torch.ops.tbe_aot.forward(*arguments, small_tables=choice)
    return result


def assert_right(lookup: Lookup, pooling: str, choice: str) -> None:
    output = run(lookup, pooling, choice)
    assert output.dtype == torch.float32
    assert worst_error(output, lookup, pooling) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("dim", [63, 64, 65, 72, 100, 127, 128, 129, 200, 256, 257])
def test_dims(dim, pooling, choice, device):
    lookup = draw(device, dim=dim)
    assert_right(lookup, pooling, choice)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 255, 256, 257])
def test_rows(rows, dtype, choice, device):
    lookup = draw(device, rows=rows, dtype=dtype)
    assert_right(lookup, "sum", choice)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("output_dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rows", "dim"), [(64, 64), (64, 65), (40, 66), (64, 128), (200, 100), (64, 256)]
)
def test_half_outputs_are_rounded_once(rows, dim, dtype, output_dtype, choice, device):
    lookup = draw(device, rows=rows, dim=dim, dtype=dtype)
    wide = run(lookup, "mean", choice)
    assert torch.equal(run(lookup, "mean", choice, output_dtype), wide.to(output_dtype))


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("mean", [0, 1, 11, 12, 13, 64, 300])
@pytest.mark.parametrize("bags", [1, 15, 16, 17, 5000])
def test_lengths(bags, mean, choice, device):
    lookup = draw(device, lengths=lengths_of(mean, bags))
    assert_right(lookup, "mean", choice)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_one_row_over_and_over(dtype, cuda):
    """Counts lose nothing, however large; adding one row so often, as a CPU does, would."""
    lengths = torch.tensor([255, 256, 257, 127, 128, 1023, 1024, 1025, 70000, 2**17 + 1, 0, 3])
    lookup = draw(cuda, rows=64, dim=64, dtype=dtype, lengths=lengths)
    lookup.indices.fill_(5)
    assert_right(lookup, "sum", "always")


@pytest.mark.parametrize("choice", CHOICES)
def test_pruned_rows(choice, device):
    lookup = draw(device)
    lookup.indices[::3] = -1
    assert_right(lookup, "mean", choice)
    lookup.indices.fill_(-1)
    assert not run(lookup, "mean", choice).any()


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_row_that_is_not_finite_stays_in_its_bags(value, dtype, device):
    lookup = draw(device, dtype=dtype)
    lookup.tables.view(0)[9, 50] = value
    lookup.indices[lookup.indices == 9] = 8
    lookup.indices[lookup.ends[3] - 1] = 9
    general, ours = (run(lookup, "sum", choice) for choice in ("never", "always"))
    assert torch.equal(general.isfinite(), ours.isfinite())
    assert int((~ours.isfinite()).sum()) <= 1
    kept = ours.isfinite()
    assert torch.allclose(general[kept], ours[kept], rtol=1e-4, atol=1e-4)


def test_equal_inputs_give_equal_bits(device):
    lookup = draw(device, lengths=lengths_of(100, 8192))
    first = run(lookup, "sum", "auto")
    assert all(torch.equal(first, run(lookup, "sum", "auto")) for _ in range(4))


def test_a_captured_graph(cuda):
    lookup = draw(cuda)
    expected = run(lookup, "sum", "auto")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run(lookup, "sum", "auto")
    lookup.indices.copy_(lookup.indices.flip(0))
    graph.replay()
    assert not torch.equal(output, expected)
    assert torch.equal(output, run(lookup, "sum", "auto"))


# --- The update ---------------------------------------------------------------------------------


def training_of(
    lookup: Lookup,
    optimizer: str = "rowwise_adagrad",
    gradient_dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Training:
    # Small enough that the sums of long runs stay about 1, where the tolerances are made for.
    gradient = make_gradient(lookup, gradient_dtype) / 64
    if "gradient_scale" in options:
        gradient *= options["gradient_scale"]
    return make_training(lookup, make_optimizer(optimizer), grad_output=gradient, **options)


def takes_small_path(training: Training, choice: str) -> bool:
    arguments = {**training.arguments(), "small_tables": choice, "arch": "sm90"}
    launches = tbe_aot.explain_backward(**arguments).launches
    return any(launch.variant.startswith("sum_small_table__") for launch in launches)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("dim", [63, 64, 65, 100, 127, 128, 129])
def test_dims_of_an_update(dim, choice, device):
    training = training_of(draw(device, dim=dim))
    assert takes_small_path(training, choice) == (choice != "never" and 64 <= dim <= 128)
    training.verify(small_tables=choice)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 63, 64, 65])
def test_rows_of_an_update(rows, dtype, choice, device):
    training = training_of(draw(device, rows=rows, dtype=dtype))
    small = choice != "never" and rows <= 64 and dtype != torch.float32
    assert takes_small_path(training, choice) == small
    training.verify(small_tables=choice)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("dim", [64, 65, 66, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gradient_dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_gradients_of_an_update(gradient_dtype, dtype, dim, choice, device):
    """Of the other half dtype, too, which is widened before."""
    lookup = draw(device, dim=dim, dtype=dtype)
    training = training_of(lookup, gradient_dtype=gradient_dtype)
    assert takes_small_path(training, choice) == (choice != "never")
    training.verify(small_tables=choice)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("mean", [0, 1, 2, 8, 300])
@pytest.mark.parametrize("bags", [1, 63, 64, 65, 5000, 8193])
def test_lengths_of_an_update(bags, mean, choice, device):
    training = training_of(draw(device, lengths=lengths_of(mean, bags)), pooling="mean")
    small = mean > 0 and choice != "never"
    assert takes_small_path(training, choice) == small
    training.verify(small_tables=choice)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("choice", ["always", "never"])
def test_optimizers_clipped_and_scaled(optimizer, choice, device):
    lookup = draw(device)
    lookup.indices[::3] = -1
    options = {"gradient_scale": torch.tensor([16.0], device=device), "gradient_clip": 0.02}
    training = training_of(lookup, optimizer, torch.float32, **options)
    training.verify(small_tables=choice)
    before = training.snapshot()
    training.run(small_tables=choice, found_inf=torch.ones(1, device=device))
    assert training.equals(before)


def test_an_update_no_worse_than_the_general_one(cuda):
    lookup = draw(cuda, lengths=lengths_of(100, 8192))
    training = training_of(lookup)
    expected, before = training.expected(), training.snapshot()
    errors = {}
    for choice in ("always", "never"):
        training.restore(before)
        training.run(small_tables=choice)
        momentum = training.states()["momentum1"][0][expected.rows[0]]
        errors[choice] = float((momentum - expected.states["momentum1"][0]).abs().max())
    # A rounding of the state itself is in both.
    rounding = float(expected.states["momentum1"][0].max()) * 2.0**-24
    assert errors["always"] <= errors["never"] + rounding


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_gradient_that_is_not_finite_stays_in_its_rows(value, device):
    lookup = draw(device)
    lookup.indices[lookup.indices == 9] = 8
    lookup.indices[lookup.ends[3] - 1] = 9
    training = training_of(lookup, "sgd")
    training.grad_output[2, 5] = value
    before = training.snapshot()
    finite = []
    for choice in ("never", "always"):
        training.restore(before)
        training.run(small_tables=choice)
        finite.append(training.tables()[0].isfinite())
    general, ours = finite
    assert torch.equal(general, ours)
    assert not ours[9, 5]
    assert ours[:, :5].all()
    assert ours[:, 6:].all()


@pytest.mark.parametrize("choice", ["always", "never"])
def test_an_update_has_equal_bits_in_every_run(choice, device):
    training = training_of(draw(device, lengths=lengths_of(100, 8192)))
    before = training.snapshot()
    seed = torch.tensor([3], device=device)
    training.run(small_tables=choice, rounding_seed=seed)
    after = training.snapshot()
    for _ in range(4):
        training.restore(before)
        training.run(small_tables=choice, rounding_seed=seed.fill_(3))
        assert training.equals(after)


def test_an_update_in_a_captured_graph(cuda):
    training = training_of(draw(cuda))
    before = training.snapshot()
    training.run()
    after = training.snapshot()
    training.restore(before)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.run()
    graph.replay()
    assert training.equals(after)
