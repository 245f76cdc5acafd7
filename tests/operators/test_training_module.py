"""Training through the module: autograd, learning rates, state dicts, AMP, and torch's own optimizers beside it."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tbe_aot
from tbe_aot import SGD, Adagrad, Adam, RowwiseAdagrad, TableBatchedEmbeddingBags, TableSpec
from tests import oracle
from tests.operators.support import WEIGHT_DTYPES
from tests.operators.training import expect_close, same_bits

TABLES = [TableSpec("user", 20, 16), TableSpec("item", 30, 5)]
FEATURES = ["user", "item", "user"]
OFFSETS = torch.tensor([0, 2, 2, 3, 5, 9, 10])
INDICES = torch.tensor([1, 19, 3, 29, 0, 5, 5, -1, 7, 2])
OPTIMIZERS = [
    SGD(lr=0.1),
    SGD(lr=0.1, weight_decay=0.1, weight_decay_mode="l2"),
    RowwiseAdagrad(lr=0.1, eps=1e-3),
    RowwiseAdagrad(lr=0.1, weight_decay=0.1, weight_decay_mode="decoupled"),
    Adagrad(lr=0.1, eps=1e-3),
    Adam(lr=0.1, betas=(0.8, 0.99)),
]


def bags(optimizer: tbe_aot.Optimizer | None = None, **options: Any) -> TableBatchedEmbeddingBags:
    torch.manual_seed(0)
    options = {"feature_tables": FEATURES} | options
    return TableBatchedEmbeddingBags(TABLES, optimizer=optimizer, **options)


def loss_of(pooled: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient differs from element to element."""
    weights = torch.linspace(-1, 1, pooled.numel()).view(pooled.shape)
    return (pooled.float() * weights + pooled.float() ** 2).sum()


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 5, (12,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return torch.randint(0, 20, (int(offsets[-1]),), generator=generator), offsets


class Reference:
    """The module's training by the oracle, in float64."""

    def __init__(self, module: TableBatchedEmbeddingBags) -> None:
        optimizer = module.optimizer
        assert optimizer is not None
        eps, beta1, beta2, decay, mode = optimizer.numbers
        self.optimizer = oracle.Optimizer(
            optimizer.name, optimizer.lr, eps, beta1, beta2, decay, mode
        )
        self.tables = [view.double() for view in module.table_views().values()]
        self.states = {
            name: [view.double() for view in views.values()]
            for name, views in module.optimizer_state().items()
        }
        self.features = [list(module.table_views()).index(name) for name in module.feature_tables]
        self.pooling = module.pooling
        self.count = 0

    def step(
        self,
        grad: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        sample_weights: torch.Tensor | None = None,
    ) -> None:
        self.count += 1
        features = [oracle.Feature(self.tables[table]) for table in self.features]
        gradients = oracle.row_gradients(
            grad, features, self.features, indices, offsets, sample_weights, self.pooling
        )
        oracle.update(self.optimizer, self.tables, self.states, gradients, self.count)

    def expect(self, module: TableBatchedEmbeddingBags, tolerance: float = 1e-4) -> None:
        expect_close(list(module.table_views().values()), self.tables, tolerance)
        for name, views in module.optimizer_state().items():
            expect_close(list(views.values()), self.states[name], 1e-4)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_backward_trains_as_the_oracle_does(optimizer, weighted, pooling):
    module = bags(optimizer, pooling=pooling)
    reference = Reference(module)
    for seed in range(3):
        indices, offsets = batch(seed)
        sample_weights = torch.rand(indices.numel()) if weighted else None
        pooled = module(indices, offsets, sample_weights)
        pooled.retain_grad()
        loss_of(pooled).backward()
        reference.step(pooled.grad, indices, offsets, sample_weights)
    reference.expect(module)
    assert module.weights.grad is None


@pytest.mark.parametrize("output_dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("weights_dtype", WEIGHT_DTYPES)
def test_every_dtype_trains(weights_dtype, output_dtype):
    module = bags(SGD(lr=0.1), weights_dtype=weights_dtype, output_dtype=output_dtype)
    reference = Reference(module)
    pooled = module(INDICES, OFFSETS)
    pooled.retain_grad()
    loss_of(pooled).backward()
    assert pooled.grad.dtype == output_dtype
    reference.step(pooled.grad, INDICES, OFFSETS)
    reference.expect(module, 1e-5 if weights_dtype == torch.float32 else 5e-3)


def embedding_bags(module: TableBatchedEmbeddingBags, sparse: bool) -> torch.nn.ModuleDict:
    plain = {
        spec.name: torch.nn.EmbeddingBag(spec.rows, spec.dim, mode="sum", sparse=sparse)
        for spec in TABLES
    }
    reference = torch.nn.ModuleDict(plain)
    weights = {key: value for key, value in module.state_dict().items() if key.endswith(".weight")}
    reference.load_state_dict(weights)
    return reference


def look_up(
    reference: torch.nn.ModuleDict, indices: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    count = (offsets.numel() - 1) // len(FEATURES)
    parts = []
    for f, name in enumerate(FEATURES):
        ends = offsets[f * count : (f + 1) * count + 1]
        bag: Any = reference[name]
        parts.append(bag(indices[ends[0] : ends[-1]], ends[:-1] - ends[0]))
    return torch.cat(parts, dim=1)


def every_row() -> tuple[torch.Tensor, torch.Tensor]:
    """Bags that look up every row of every table, some twice."""
    parts = [torch.arange(20), torch.arange(30), torch.randint(0, 20, (20,))]
    lengths = [10, 10, 15, 15, 5, 15]
    return torch.cat(parts), torch.tensor([0, *lengths]).cumsum(0)


TORCH: list[tuple[tbe_aot.Optimizer, Callable[..., torch.optim.Optimizer], bool, bool]] = [
    (SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1), True, False),
    (
        Adagrad(lr=0.1, eps=1e-6),
        lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-6),
        True,
        False,
    ),
    (
        Adagrad(lr=0.1, eps=1e-6, weight_decay=0.1, weight_decay_mode="l2"),
        lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-6, weight_decay=0.1),
        False,
        True,
    ),
    # SparseAdam counts updates per table and adds eps before its correction: alike when every batch has every table.
    (
        Adam(lr=0.1, eps=1e-12),
        lambda p: torch.optim.SparseAdam(list(p), lr=0.1, eps=1e-12),
        True,
        False,
    ),
    (Adam(lr=0.1), lambda p: torch.optim.Adam(p, lr=0.1), False, True),
    (
        Adam(lr=0.1, weight_decay=0.1, weight_decay_mode="l2"),
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
        False,
        True,
    ),
    (
        Adam(lr=0.1, weight_decay=0.1, weight_decay_mode="decoupled"),
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
        False,
        True,
    ),
]


@pytest.mark.parametrize(("optimizer", "make", "sparse", "dense"), TORCH, ids=range(len(TORCH)))
def test_as_torch_optimizers_do(optimizer, make, sparse, dense):
    """Sparse ones on any batch; dense ones, which step every row, on batches that have every row."""
    module = bags(optimizer)
    reference = embedding_bags(module, sparse)
    torch_optimizer = make(reference.parameters())
    for seed in range(5):
        indices, offsets = every_row() if dense else batch(seed)
        loss_of(module(indices, offsets)).backward()
        torch_optimizer.zero_grad()
        loss_of(look_up(reference, indices, offsets)).backward()
        torch_optimizer.step()
    expected = reference.state_dict()
    for name, view in module.table_views().items():
        torch.testing.assert_close(view, expected[f"{name}.weight"], rtol=1e-4, atol=1e-5)


def test_several_forwards_before_their_backwards():
    module, other = bags(RowwiseAdagrad(lr=0.1)), bags(RowwiseAdagrad(lr=0.1))
    reference = Reference(module)
    pooled = [module(*batch(seed)) for seed in range(3)]
    for seed in (2, 0, 1):
        pooled[seed].retain_grad()
        loss_of(pooled[seed]).backward()
        reference.step(pooled[seed].grad, *batch(seed))
    reference.expect(module)
    # In one backward as well: both lookups saw the first tables.
    first, second = other(*batch(0)), other(*batch(1))
    (loss_of(first) + loss_of(second)).backward()
    assert not same_bits(other.weights.detach(), module.weights.detach())


@pytest.mark.parametrize(
    "options", [{}, {"pooling": "mean"}, {"frozen": ["item"]}, {"deferred": True}], ids=str
)
@pytest.mark.parametrize("sizes", [None, [[1, 1], [0, 2], [1, 1]]], ids=["batch", "vbe"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_hoisted_transpose_gives_equal_bits(optimizer, sizes, options):
    module = bags(optimizer, hoist_transpose=True, **options)
    other = bags(optimizer, **options)
    gradients = []
    for one in (module, other):
        torch.manual_seed(1)
        factors = [torch.rand(INDICES.numel()).requires_grad_() for _ in range(2)]
        # Several forwards before their backwards; one of the lookups has no factors.
        indices = [INDICES, INDICES.flip(0) % 20, INDICES]
        pooled = [
            one(ids, OFFSETS, factor, sizes)
            for ids, factor in zip(indices, (*factors, None), strict=True)
        ]
        for number in (2, 0, 1):
            loss_of(pooled[number]).backward()
        if one.deferred:
            one.step()
        gradients.append(torch.cat([factor.grad for factor in factors if factor.grad is not None]))
    assert gradients[0].numel() == 2 * INDICES.numel()
    assert same_bits(*gradients)
    for key, value in module.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key
    assert not same_bits(module.weights.detach(), bags().weights.detach())


def test_a_transpose_for_another_dtype_is_not_used():
    # In float16 the slot of "b" comes first.
    tables = [TableSpec("a", 3, 8), TableSpec("b", 5, 12), TableSpec("c", 7, 4)]
    inputs = (torch.arange(3), torch.arange(4))
    results = []
    for hoisted, deferred in ((False, False), (True, False), (True, True)):
        torch.manual_seed(0)
        module = TableBatchedEmbeddingBags(
            tables, optimizer=SGD(lr=0.1), hoist_transpose=hoisted, deferred=deferred
        )
        pooled = module(*inputs)
        if deferred:
            pooled.sum().backward()
            module.half().step()
        else:
            module.half()
            pooled.sum().backward()
        results.append(module.weights.detach().clone())
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


@pytest.mark.parametrize("as_tensor", [False, True])
def test_fbgemm_3989_the_learning_rate_changes_between_forward_and_backward(as_tensor):
    module = bags(SGD(lr=100.0))
    expected = bags(SGD(lr=0.25))
    for one in (module, expected):
        pooled = one(INDICES, OFFSETS)
        if one is module:
            one.set_learning_rate(torch.tensor(0.25) if as_tensor else 0.25)
        loss_of(pooled).backward()
    assert same_bits(module.weights.detach(), expected.weights.detach())
    assert module.learning_rate.tolist() == [0.25]
    with pytest.raises(RuntimeError, match="no optimizer: it has no learning rate"):
        bags().set_learning_rate(0.1)


def test_torchrec_4602_gradient_of_sample_weights_is_of_the_row_before_the_update():
    module = TableBatchedEmbeddingBags([TableSpec("t", 5, 4)], optimizer=SGD(lr=1.0))
    row = module.table("t")[2].clone()
    weights = torch.tensor([0.5], requires_grad=True)
    grad = torch.tensor([[1.0, -2, 3, 0.5]])
    module(torch.tensor([2]), torch.tensor([0, 1]), weights).backward(grad)
    torch.testing.assert_close(weights.grad, (row @ grad[0]).view(1))
    torch.testing.assert_close(module.table("t")[2], row - 0.5 * grad[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_gradient_of_sample_weights_has_their_dtype(dtype):
    weights = torch.rand(INDICES.numel()).to(dtype).requires_grad_()
    module = bags()  # Without an optimizer they may be all that is trained.
    module(INDICES, OFFSETS, weights).sum().backward()
    assert weights.grad is not None
    assert weights.grad.dtype == dtype
    assert weights.grad[7] == 0


@pytest.mark.parametrize("lookups", [0, INDICES.numel()])
def test_empty_sample_weights_mean_none_and_have_an_empty_gradient(lookups):
    weights = torch.empty(0, requires_grad=True)
    module, plain = bags(SGD(lr=1.0)), bags(SGD(lr=1.0))
    indices, offsets = INDICES[:lookups], OFFSETS.clamp(max=lookups)
    module(indices, offsets, weights).sum().backward()
    plain(indices, offsets).sum().backward()
    assert weights.grad is not None
    assert weights.grad.shape == (0,)
    assert torch.equal(module.weights, plain.weights)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the backward's operators that run."""
    names: list[str] = []
    for name in ("transpose_indices", "backward_update", "per_sample_weights_gradient"):
        operator = getattr(torch.ops.tbe_aot, name)

        def record(*args: Any, name: str = name, operator: Any = operator) -> Any:
            names.append(name)
            return operator(*args)

        monkeypatch.setattr(torch.ops.tbe_aot, name, record)
    return names


def test_torchrec_4703_only_the_work_that_somebody_needs(calls):
    module = bags(SGD())
    weights = torch.rand(INDICES.numel())
    module(INDICES, OFFSETS, weights).sum().backward()
    assert calls == ["backward_update"]
    calls.clear()
    module(INDICES, OFFSETS, weights.clone().requires_grad_()).sum().backward()
    assert calls == ["per_sample_weights_gradient", "backward_update"]
    calls.clear()
    with torch.no_grad():
        assert not module(INDICES, OFFSETS, weights).requires_grad
    module.requires_grad_(False)
    assert not module(INDICES, OFFSETS, weights).requires_grad
    module(INDICES, OFFSETS, weights.clone().requires_grad_()).sum().backward()
    assert calls == ["per_sample_weights_gradient"]
    calls.clear()
    # A result that the loss does not use.
    module.requires_grad_()
    other = torch.ones(1, requires_grad=True)
    pooled = module(INDICES, OFFSETS)
    (other * 2).sum().backward()
    assert pooled.requires_grad
    assert calls == []
    # Nothing is left to train.
    frozen = bags(SGD(), frozen=["user", "item"], hoist_transpose=True)
    assert not frozen(INDICES, OFFSETS, weights).requires_grad
    frozen(INDICES, OFFSETS, weights.clone().requires_grad_()).sum().backward()
    assert calls == ["per_sample_weights_gradient"]


def test_a_hoisted_transpose_is_made_in_the_forward_of_a_training_step(calls):
    module = bags(SGD(), hoist_transpose=True)
    weights = torch.rand(INDICES.numel(), requires_grad=True)
    pooled = module(INDICES, OFFSETS, weights)
    assert calls == ["transpose_indices"]
    pooled.sum().backward()
    assert calls == ["transpose_indices", "per_sample_weights_gradient", "backward_update"]
    calls.clear()
    with torch.no_grad():
        module(INDICES, OFFSETS)
    module.requires_grad_(False)
    module(INDICES, OFFSETS)
    assert calls == []
    module(INDICES, OFFSETS, weights).sum().backward()
    assert calls == ["per_sample_weights_gradient"]


def test_a_second_derivative_is_refused():
    module = bags(SGD())
    weights = torch.rand(INDICES.numel(), requires_grad=True)
    (gradient,) = torch.autograd.grad(
        module(INDICES, OFFSETS, weights).square().sum(), weights, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("sizes", [None, [[1, 1], [0, 2], [1, 1]]])
def test_frozen_tables_keep_their_bits(sizes):
    module = bags(Adagrad(lr=0.1), frozen=["user"])
    reference = bags(Adagrad(lr=0.1))
    before = module.table("user").clone()
    for one in (module, reference):
        loss_of(one(INDICES, OFFSETS, None, sizes)).backward()
    assert same_bits(module.table("user"), before)
    assert not module.optimizer_state()["momentum1"]["user"].any()
    assert same_bits(module.table("item"), reference.table("item"))
    assert not same_bits(reference.table("user"), before)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_variable_batch_trains_as_the_oracle_does(optimizer):
    module = bags(optimizer)
    reference = Reference(module)
    sizes = [[1, 1], [0, 2], [1, 1]]
    pooled = module(INDICES, OFFSETS, None, sizes)
    pooled.retain_grad()
    loss_of(pooled).backward()
    features = [oracle.Feature(reference.tables[table]) for table in reference.features]
    gradients = oracle.row_gradients(
        pooled.grad, features, reference.features, INDICES, OFFSETS, batch_sizes=sizes
    )
    oracle.update(reference.optimizer, reference.tables, reference.states, gradients)
    reference.expect(module)


def test_gradient_clipping():
    module = bags(SGD(lr=1.0), gradient_clip=0.5)
    reference = Reference(module)
    module(INDICES, OFFSETS).mul(3).sum().backward()
    reference.step(torch.full((2, 37), 0.5), INDICES, OFFSETS)
    reference.expect(module, 1e-5)


TRAIN = """
import sys
import torch
import tbe_aot
from tbe_aot import *

def make(name, dtype):
    torch.manual_seed(0)
    optimizer = {"sgd": SGD, "rowwise_adagrad": RowwiseAdagrad, "adagrad": Adagrad, "adam": Adam}[name](lr=0.05)
    bags = TableBatchedEmbeddingBags(
        [TableSpec("user", 20, 16), TableSpec("item", 30, 5)], weights_dtype=getattr(torch, dtype), optimizer=optimizer
    )
    top = torch.nn.Linear(21, 1)
    return torch.nn.ModuleDict({"bags": bags, "top": top})

def train(model, first, last):
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        lengths = torch.randint(0, 5, (16,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        indices = torch.randint(0, 20, (int(offsets[-1]),), generator=generator)
        model["bags"].set_learning_rate(0.05 / (1 + step // 20))
        model["top"](model["bags"](indices, offsets)).square().mean().backward()
        with torch.no_grad():
            for parameter in model["top"].parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["sgd", "rowwise_adagrad", "adagrad", "adam"])
def test_training_resumed_in_another_process_gives_equal_bits(name, dtype, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    namespace: dict[str, Any] = {}
    exec(TRAIN, namespace)
    whole = namespace["make"](name, dtype)
    namespace["train"](whole, 0, 50)
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    namespace["train"](whole, 50, 70)
    package = Path(tbe_aot.__file__).resolve().parents[1]
    resume = f"""
import sys; sys.path[:0] = [{str(package)!r}, {str(tmp_path)!r}]
from train import *
model = make({name!r}, {dtype!r})
model.load_state_dict(torch.load("state.pt"))
train(model, 50, 70)
torch.save(model.state_dict(), "resumed.pt")
"""
    subprocess.run([sys.executable, "-c", resume], cwd=tmp_path, check=True)
    resumed = torch.load(tmp_path / "resumed.pt")
    state = whole.state_dict()
    assert resumed.keys() == state.keys()
    for key, value in state.items():
        assert torch.equal(resumed[key], value), key


def test_the_state_dict_has_the_optimizers_state():
    def shapes(optimizer: tbe_aot.Optimizer) -> dict[str, tuple[int, ...]]:
        return {key: tuple(value.shape) for key, value in bags(optimizer).state_dict().items()}

    tables = {"user.weight": (20, 16), "item.weight": (30, 5)}
    assert shapes(SGD()) == tables | {"learning_rate": (1,)}
    rows = {"user.momentum1": (20,), "item.momentum1": (30,), "learning_rate": (1,)}
    assert shapes(RowwiseAdagrad()) == tables | rows
    moments = {
        f"{table}.{m}": shape
        for table, shape in (("user", (20, 16)), ("item", (30, 5)))
        for m in ("momentum1", "momentum2")
    }
    assert shapes(Adam()) == tables | moments | {"learning_rate": (1,), "update_count": (1,)}
    # Tables alone load into a module that trains, if it is told so.
    missing, _ = bags(SGD()).load_state_dict(bags().state_dict(), strict=False)
    assert missing == ["learning_rate"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_another_dtype_keeps_the_state_and_trains_on(optimizer):
    module = bags(optimizer)
    loss_of(module(INDICES, OFFSETS)).backward()
    before = {
        name: {table: view.clone() for table, view in views.items()}
        for name, views in module.optimizer_state().items()
    }
    module.bfloat16()
    assert module.learning_rate.dtype == torch.float32
    for name, views in module.optimizer_state().items():
        for table, view in views.items():
            assert view.dtype == torch.float32
            assert same_bits(view, before[name][table])
    reference = Reference(module)
    reference.count = 1
    pooled = module(INDICES, OFFSETS)
    pooled.retain_grad()
    loss_of(pooled).backward()
    reference.step(pooled.grad, INDICES, OFFSETS)
    reference.expect(module, 1e-2)


@pytest.mark.parametrize("optimizer", [SGD(), RowwiseAdagrad(), Adam()], ids=repr)
def test_another_dtype_that_changes_the_order_of_slots_keeps_the_state(optimizer):
    # In float16 "b" is no whole vector, so that its slot comes first.
    tables = [TableSpec("a", 3, 8), TableSpec("b", 5, 12), TableSpec("c", 7, 4)]
    module = TableBatchedEmbeddingBags(tables, optimizer=optimizer)
    inputs = (torch.arange(3), torch.arange(4))
    module(*inputs).sum().backward()
    slots = module.features[:, 0].tolist()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    assert module.half().features[:, 0].tolist() != slots
    assert module.features[:, 7].tolist() == sorted(module.features[:, 7].tolist())
    for key, value in module.state_dict().items():
        expected = before[key].half() if key.endswith(".weight") else before[key]
        assert torch.equal(value, expected), key
    reference = Reference(module)
    reference.count = 1
    pooled = module(*inputs)
    pooled.sum().backward()
    reference.step(torch.ones_like(pooled), *inputs)
    reference.expect(module, 1e-2)


def test_a_checkpoint_does_not_depend_on_the_order_of_slots():
    def make(features: list[str]) -> TableBatchedEmbeddingBags:
        tables = [TableSpec("a", 3, 8), TableSpec("b", 5, 5), TableSpec("c", 7, 3)]
        torch.manual_seed(0)
        return TableBatchedEmbeddingBags(
            tables, feature_tables=features, optimizer=RowwiseAdagrad(lr=0.1)
        )

    module, other = make(["a", "b", "c"]), make(["b", "a", "c"])
    assert module.metadata.first_global_rows != other.metadata.first_global_rows
    module(torch.tensor([1, 4, 6]), torch.arange(4)).square().sum().backward()
    other.load_state_dict(module.state_dict())
    module(torch.tensor([2, 4, 6]), torch.arange(4)).square().sum().backward()
    other(torch.tensor([4, 2, 6]), torch.arange(4)).square().sum().backward()
    for key, value in module.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key


def test_materialised_from_meta_starts_without_state():
    module = bags(Adam(lr=0.5), device="meta").to_empty(device="cpu")
    assert module.learning_rate.tolist() == [0.5]
    assert module.update_count.tolist() == [0]
    assert not module.get_buffer("momentum2").any()
    module.load_state_dict(bags(Adam(lr=0.5)).state_dict())
    loss_of(module(INDICES, OFFSETS)).backward()
    assert module.update_count.tolist() == [1]


def test_reset_parameters_starts_anew_and_copies_are_independent():
    module = bags(Adam(lr=0.5))
    twin = copy.deepcopy(module)
    module.set_learning_rate(0.1)
    loss_of(module(INDICES, OFFSETS)).backward()
    assert twin.update_count.tolist() == [0]
    assert twin.learning_rate.tolist() == [0.5]
    module.reset_parameters()
    assert module.update_count.tolist() == [0]
    assert module.learning_rate.tolist() == [0.5]
    assert not module.get_buffer("momentum1").any()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_deferred_step_is_the_backwards_update(optimizer):
    module, other = bags(optimizer, deferred=True), bags(optimizer)
    sample_weights = torch.rand(INDICES.numel())
    before = module.weights.detach().clone()
    indices = INDICES.clone()
    for one in (module, other):
        loss_of(one(indices, OFFSETS, sample_weights)).backward()
    assert same_bits(module.weights.detach(), before)
    # What the caller does to its tensors meanwhile is of no importance.
    indices.zero_()
    sample_weights.zero_()
    module.step()
    assert same_bits(module.weights.detach(), other.weights.detach())
    module.step()
    assert same_bits(module.weights.detach(), other.weights.detach())
    with pytest.raises(RuntimeError, match=r"step\(\) is for a module with deferred=True"):
        other.step()


def test_pending_updates_are_of_the_tables_before():
    module = bags(Adam(lr=0.5), deferred=True)
    saved = copy.deepcopy(module.state_dict())
    for start_anew in (lambda: module.load_state_dict(saved), module.reset_parameters):
        loss_of(module(INDICES, OFFSETS)).backward()
        assert module.pending_updates
        start_anew()
        assert not module.pending_updates


@pytest.mark.parametrize("unscaled_first", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_grad_scaler_through_an_inf_step(optimizer, unscaled_first):
    scaled = bags(optimizer, deferred=True)
    plain = bags(optimizer)
    tops = [torch.nn.Linear(37, 1) for _ in range(2)]
    tops[1].load_state_dict(tops[0].state_dict())
    dense = [torch.optim.SGD(top.parameters(), lr=0.1) for top in tops]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    tables: Any = scaled.deferred_step()
    for step in range(4):
        inputs = batch(step)
        loss = tops[0](scaled(*inputs)).square().sum() * (torch.inf if step == 1 else 1)
        scaler.scale(loss).backward()
        before = scaled.weights.detach().clone()
        scale = scaler.get_scale()
        if unscaled_first:
            scaler.unscale_(tables)
        scaler.step(tables)
        scaler.step(dense[0])
        scaler.update()
        dense[0].zero_grad()
        assert not scaled.pending_updates
        if step == 1:
            assert scaler.get_scale() == scale / 2
            assert same_bits(scaled.weights.detach(), before)
            continue
        tops[1](plain(*inputs)).square().sum().backward()
        dense[1].step()
        dense[1].zero_grad()
    for name, view in scaled.table_views().items():
        torch.testing.assert_close(view, plain.table(name), rtol=1e-4, atol=1e-5)
    if optimizer.counts_updates:
        assert scaled.update_count.tolist() == [3]


def test_a_step_with_a_scale_and_a_flag_by_hand():
    module, other = bags(SGD(lr=0.1), deferred=True), bags(SGD(lr=0.1))
    (module(INDICES, OFFSETS).sum() * 8).backward()
    module.step(torch.tensor(8.0), torch.tensor(0.0))
    other(INDICES, OFFSETS).sum().backward()
    assert same_bits(module.weights.detach(), other.weights.detach())
    module(INDICES, OFFSETS).sum().backward()
    module.step(found_inf=torch.tensor(1.0))
    assert same_bits(module.weights.detach(), other.weights.detach())
    assert module.pending_updates == []
    module(INDICES, OFFSETS).sum().backward()
    module.deferred_step().zero_grad()
    module.step()
    assert same_bits(module.weights.detach(), other.weights.detach())


def test_a_scaler_without_a_waiting_gradient():
    module = bags(SGD(), deferred=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1, requires_grad=True).sum()).backward()
    tables: Any = module.deferred_step()
    scaler.step(tables)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(lr=-1), "lr is -1, expected at least 0"),
        (lambda: SGD(lr=float("nan")), "lr is nan"),
        (lambda: Adagrad(eps=-1), "eps is -1"),
        (lambda: Adam(betas=(0.9, 1.0)), r"betas is \(0.9, 1.0\), expected two numbers"),
        (lambda: SGD(weight_decay=0.1), "expected a weight_decay_mode, 'l2' or 'decoupled'"),
        (lambda: SGD(weight_decay_mode="L2"), "weight_decay_mode is 'L2', expected one of 'none'"),
        (lambda: SGD(weight_decay=-1, weight_decay_mode="l2"), "weight_decay is -1"),
        (lambda: bags(SGD(), frozen=["nobody"]), "frozen names nobody, expected names of tables"),
        (lambda: bags(SGD(), gradient_clip=-1.0), "gradient_clip is -1.0, expected at least 0"),
    ],
)
def test_construction_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_repr_shows_the_optimizer():
    assert "optimizer=SGD(lr=0.1" in repr(bags(SGD(lr=0.1)))


def test_frozen_may_be_any_iterable() -> None:
    specs = [tbe_aot.TableSpec("a", 8, 4), tbe_aot.TableSpec("b", 8, 4)]
    bags = tbe_aot.TableBatchedEmbeddingBags(
        specs, optimizer=tbe_aot.SGD(lr=1.0), frozen=(name for name in ["a"])
    )
    before = {name: table.clone() for name, table in bags.table_views().items()}
    bags(torch.tensor([1, 2]), torch.arange(3)).sum().backward()
    assert torch.equal(bags.table("a"), before["a"])
    assert not torch.equal(bags.table("b"), before["b"])


def test_a_step_that_failed_goes_on_where_it_stopped() -> None:
    bags = tbe_aot.TableBatchedEmbeddingBags(
        [tbe_aot.TableSpec("a", 8, 4)],
        optimizer=tbe_aot.SGD(lr=1.0),
        deferred=True,
        bounds_check="none",
    )
    before = bags.table("a").clone()
    for row in (1, 2):
        bags(torch.tensor([row]), torch.arange(2)).sum().backward()
    bags.pending_updates[1].batch.offsets.fill_(77)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="77"):
            bags.step()
        assert torch.equal(bags.table("a")[1], before[1] - 1)
    bags.pending_updates[0].batch.offsets.copy_(torch.arange(2))
    bags.step()
    assert torch.equal(bags.table("a")[2], before[2] - 1)
    assert not bags.pending_updates


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="expected two numbers"):
        tbe_aot.Adam(betas=(0.9, 0.99, 0.999))  # type: ignore[arg-type]  # the point
    bags = tbe_aot.TableBatchedEmbeddingBags(
        [tbe_aot.TableSpec("a", 8, 4)], optimizer=tbe_aot.SGD(lr=1.0)
    )
    with pytest.raises(ValueError, match="2 elements, expected 1"):
        bags.set_learning_rate(torch.ones(2))


def test_a_clip_that_fp32_has_not_clips() -> None:
    bags = tbe_aot.TableBatchedEmbeddingBags(
        [tbe_aot.TableSpec("a", 8, 4)], optimizer=tbe_aot.SGD(lr=1.0), gradient_clip=1e-46
    )
    before = bags.table("a").clone()
    bags(torch.tensor([1]), torch.arange(2)).sum().backward()
    torch.testing.assert_close(bags.table("a"), before, rtol=0, atol=1e-44)
