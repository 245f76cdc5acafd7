"""Training inside torch.compile: the same bits as in eager mode, tables updated in place and never copied."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._inductor.utils import run_fw_bw_and_get_code

import tbe_aot
from tbe_aot import SGD, Adagrad, Adam, RowwiseAdagrad, TableBatchedEmbeddingBags, TableSpec
from tests.operators.training import same_bits

OPTIMIZERS = [SGD(lr=0.1), RowwiseAdagrad(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.1)]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model(optimizer: tbe_aot.Optimizer, **options: Any) -> torch.nn.ModuleDict:
    torch.manual_seed(0)
    bags = TableBatchedEmbeddingBags(
        [TableSpec("user", 20, 16), TableSpec("item", 30, 5)], optimizer=optimizer, **options
    )
    return torch.nn.ModuleDict({"bags": bags, "top": torch.nn.Linear(21, 1)})


def batch(seed: int, bags: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 5, (2 * bags,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return torch.randint(0, 20, (int(offsets[-1]),), generator=generator), offsets


def loss(of: torch.nn.ModuleDict, *inputs: Any) -> torch.Tensor:
    result: torch.Tensor = of["top"](of["bags"](*inputs)).square().sum()
    return result


def tables(of: torch.nn.ModuleDict) -> Any:
    return of["bags"]


def expect_same(first: torch.nn.ModuleDict, second: torch.nn.ModuleDict) -> None:
    for key, value in first.state_dict().items():
        torch.testing.assert_close(value, second.state_dict()[key], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_compiled_model_trains_in_place(optimizer):
    compiled, eager = model(optimizer), model(optimizer)
    address = tables(compiled).weights.data_ptr()
    run: Callable[..., torch.Tensor] = torch.compile(loss, fullgraph=True, dynamic=True)
    for one, call in ((compiled, run), (eager, loss)):
        call(one, *batch(0)).backward()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed, (one, call) in itertools.product(range(1, 5), ((compiled, run), (eager, loss))):
            tables(one).set_learning_rate(0.1 / seed)
            value = call(one, *batch(seed, 4 + seed))
            tables(one).set_learning_rate(0.2 / seed)  # Read when the backward runs.
            value.backward()
    expect_same(compiled, eager)
    assert not same_bits(
        tables(compiled).weights.detach(), tables(model(optimizer)).weights.detach()
    )
    assert tables(compiled).weights.data_ptr() == address


@pytest.mark.slow
@pytest.mark.parametrize("hoisted", [False, True])
def test_two_forwards_before_their_backwards(hoisted):
    compiled, eager = (model(RowwiseAdagrad(lr=0.1), hoist_transpose=hoisted) for _ in range(2))
    run = torch.compile(loss, fullgraph=True)
    for one, call in ((compiled, run), (eager, loss)):
        values = [call(one, *batch(1)), call(one, *batch(1))]
        for value in values:
            value.backward()
    expect_same(compiled, eager)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"frozen": ["user"]},
        {"gradient_clip": 0.01},
        {"pooling": "mean"},
        {"pooling": "mean", "hoist_transpose": True},
        {"frozen": ["user"], "hoist_transpose": True},
    ],
    ids=str,
)
def test_sample_weights_and_options(options):
    optimizer = Adagrad(lr=0.1)
    compiled, eager = model(optimizer, **options), model(optimizer, **options)
    run = torch.compile(loss, fullgraph=True)
    gradients = []
    for one, call in ((compiled, run), (eager, loss)):
        indices, offsets = batch(1)
        weights = torch.linspace(0.5, 1, indices.numel(), requires_grad=True)
        call(one, indices, offsets, weights).backward()
        gradients.append(weights.grad)
    torch.testing.assert_close(*gradients)
    expect_same(compiled, eager)


@pytest.mark.slow
def test_the_compiled_code_copies_no_table():
    compiled = model(Adam(lr=0.1))
    run = torch.compile(loss, fullgraph=True)
    _, code = run_fw_bw_and_get_code(lambda: run(compiled, *batch(1)))
    text = "\n".join(code)
    assert text.count("torch.ops.tbe_aot.backward_update.default(") == 1
    sizes = re.findall(r"= empty_strided_cpu\(\((.*?)\), ", text)
    assert sizes
    # The largest thing that is allocated is the result's gradient.
    assert max(math.prod(int(n) for n in size.split(",") if n.strip()) for size in sizes) == 4 * 21
    assert ".clone" not in text


@pytest.mark.slow
def test_a_hoisted_transpose_is_made_once():
    """torch decides where: it moves into the backward what the forward's result does not need."""
    compiled = model(SGD(lr=0.1), hoist_transpose=True)
    run = torch.compile(loss, fullgraph=True)
    _, code = run_fw_bw_and_get_code(lambda: run(compiled, *batch(1)))
    text = "\n".join(code)
    assert text.count("torch.ops.tbe_aot.transpose_indices.default(") == 1


@pytest.mark.slow
@pytest.mark.parametrize("hoisted", [False, True])
def test_a_deferred_step(hoisted):
    compiled, eager = (
        model(RowwiseAdagrad(lr=0.1), deferred=True, hoist_transpose=hoisted) for _ in range(2)
    )
    run = torch.compile(loss)
    for one, call in ((compiled, run), (eager, loss)):
        for seed in range(2):
            call(one, *batch(seed)).backward()
            tables(one).step()
    expect_same(compiled, eager)


@pytest.mark.parametrize("bounds_check", ["none", "ignore", "warning", "fatal"])
@pytest.mark.parametrize("hoisted", [False, True])
def test_rows_that_were_looked_up_are_trained(hoisted, bounds_check):
    """Whatever the compiled code does to the indices after the lookup."""
    bags = TableBatchedEmbeddingBags(
        [TableSpec("a", 20, 4)],
        optimizer=SGD(lr=1.0),
        bounds_check=bounds_check,
        hoist_transpose=hoisted,
    )
    before = bags.table("a").detach().clone()

    def look_up(indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = bags(indices, offsets)
        indices.remainder_(5)
        return pooled

    compiled = torch.compile(look_up, backend="aot_eager")
    compiled(torch.tensor([1, 7, 12, 19]), torch.tensor([0, 2, 4])).sum().backward()
    trained = (bags.table("a") != before).any(1).nonzero().flatten()
    assert trained.tolist() == [1, 7, 12, 19]


@pytest.mark.parametrize("bounds_check", ["none", "warning"])
@pytest.mark.parametrize("weighs", [False, True], ids=["constant", "trained"])
def test_rows_are_trained_with_the_weights_of_the_lookup(weighs, bounds_check):
    """Whatever the compiled code does to them after it."""

    def train(compiles: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        torch.manual_seed(0)
        bags = TableBatchedEmbeddingBags(
            [TableSpec("a", 20, 4)], optimizer=SGD(lr=1.0), bounds_check=bounds_check
        )
        given = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=weighs)

        def look_up(indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            weights = given * 1
            pooled: torch.Tensor = bags(indices, offsets, weights)
            # Eager autograd refuses to go on after this.
            if compiles:
                weights.mul_(100)
                offsets.zero_()
            return pooled

        call = torch.compile(look_up, backend="aot_eager") if compiles else look_up
        call(torch.tensor([1, 7, 12, 19]), torch.tensor([0, 2, 4])).sum().backward()
        return bags.table("a"), given.grad

    compiled, eager = train(compiles=True), train(compiles=False)
    torch.testing.assert_close(compiled, eager, rtol=0, atol=0)
