"""Training on the DLRM v2 tables, checked twice against float64: our formulas with torch's operators, and torch's sparse optimizers.

The model is small: the pooled rows of all features go through one hidden layer to the logit of a click.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn

import tbe_aot

from .dataset import MULTI_HOT, Batch, D

HIDDEN = 64
LEARNING_RATE = 0.01
DENSE_LEARNING_RATE = 0.02
# Of the loss in each step, relative to the one in float64; half precision tables round every update.
LOSS_TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# The last epoch's mean loss is at most this share of the first one's.
FALL = 0.95
# Of a trained float32 weight, times max(1, |weight|).
WEIGHT_TOLERANCE = {"SGD": 1e-5, "Adagrad": 1e-4, "SparseAdam": 1e-4}
# Where the gradient of a weight nearly cancels out, Adagrad and Adam divide noise by noise; this eps is above the noise.
EPS = 1e-4
BETAS = (0.9, 0.999)

_Step = Callable[[Batch], torch.Tensor]


@dataclass(frozen=True)
class TorchComparison:
    """The same steps with tbe_aot and with an optimizer of torch's.

    Attributes:
        name: of torch's optimizer.
        ours, theirs: median seconds of a step, dense layers included.
        worst: the largest difference of a trained weight from the one that torch's optimizer gives in float64, over its bound.
        theirs_worst: the same of torch's float32 weights.
    """

    name: str
    ours: float
    theirs: float
    worst: float
    theirs_worst: float


@dataclass(frozen=True)
class Epoch:
    """What one pass over the batches gave.

    Attributes:
        loss: its mean over the batches.
        exact: the same in float64.
        worst: the largest difference of a batch's two losses over its bound.
        seconds: median of a step.
    """

    loss: float
    exact: float
    worst: float
    seconds: float


def make_top(device: torch.device) -> nn.Sequential:
    """The dense layers, always the same ones."""
    generator = torch.Generator().manual_seed(1)
    # Not ReLU: where a hidden unit is almost 0, the rounding of a sum would decide whether it passes a gradient on, and
    # two right trainings would differ by all of that gradient.
    top = nn.Sequential(nn.Linear(len(MULTI_HOT) * D, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 1))
    for parameter in top.parameters():
        bound = parameter.shape[-1] ** -0.5
        parameter.data.uniform_(-bound, bound, generator=generator)
    return top.to(device)


def loss_of(top: nn.Module, pooled: torch.Tensor, clicks: torch.Tensor) -> torch.Tensor:
    """Binary cross entropy of the clicks, in the dtype of the pooled rows."""
    logits = top(pooled).squeeze(1)
    return nn.functional.binary_cross_entropy_with_logits(logits, clicks.to(logits.dtype))


def make_step(bags: tbe_aot.TableBatchedEmbeddingBags) -> _Step:
    """A training step: lookup, dense layers and back; the backward trains the tables."""
    top = make_top(bags.weights.device)
    dense = torch.optim.SGD(top.parameters(), lr=DENSE_LEARNING_RATE)

    def step(batch: Batch) -> torch.Tensor:
        loss = loss_of(top, bags(batch.ids, batch.offsets), batch.clicks)
        dense.zero_grad()
        loss.backward()
        dense.step()
        return loss.detach()

    return step


def timed(step: _Step, batch: Batch) -> tuple[torch.Tensor, float]:
    """A step's loss and its seconds."""

    def wait() -> None:
        if batch.ids.is_cuda:
            torch.cuda.synchronize(batch.ids.device)

    wait()
    start = time.perf_counter()
    loss = step(batch)
    wait()
    return loss, time.perf_counter() - start


class Float64Run:
    """The same training in float64 with torch's own operators, on copies of those rows that the batches look up.

    Tables of any size can be followed this way: rows that are not looked up have no part in it.

    Args:
        tables: the tables before the training, [rows, dim].
        batches: all that ``step`` will get.
        optimizer: of the tables.
    """

    def __init__(
        self,
        tables: Iterable[torch.Tensor],
        batches: Sequence[Batch],
        optimizer: tbe_aot.RowwiseAdagrad,
    ) -> None:
        self.optimizer = optimizer
        self.row_ids: list[torch.Tensor] = []
        self.rows: list[nn.Parameter] = []
        self.positions: list[tuple[torch.Tensor, ...]] = []
        split = [batch.features() for batch in batches]
        for feature, table in enumerate(tables):
            parts = [features[feature][0] for features in split]
            ids, positions = torch.cat(parts).unique(return_inverse=True)
            self.row_ids.append(ids)
            self.rows.append(nn.Parameter(table[ids].double()))
            self.positions.append(positions.split([len(part) for part in parts]))
        self.offsets = [[offsets for _, offsets in features] for features in split]
        self.statistics = [rows.new_zeros(len(rows)) for rows in self.rows]
        self.top = make_top(self.rows[0].device).double()
        self.dense = torch.optim.SGD(self.top.parameters(), lr=DENSE_LEARNING_RATE)

    def step(self, number: int, clicks: torch.Tensor) -> torch.Tensor:
        """A step with the batch of that number: the loss before it."""
        pooled = [
            nn.functional.embedding_bag(positions[number], rows, offsets, mode="sum")
            for positions, rows, offsets in zip(
                self.positions, self.rows, self.offsets[number], strict=True
            )
        ]
        loss = loss_of(self.top, torch.cat(pooled, dim=1), clicks)
        self.dense.zero_grad()
        loss.backward()
        self.dense.step()
        with torch.no_grad():
            for rows, statistic in zip(self.rows, self.statistics, strict=True):
                self._update(rows, statistic)
        return loss.detach()

    def _update(self, rows: nn.Parameter, statistic: torch.Tensor) -> None:
        # A row that the batch does not look up has the gradient 0 and stays as it is.
        gradient, rows.grad = rows.grad, None
        if gradient is not None:
            statistic += gradient.square().mean(1)
            rates = self.optimizer.lr / (statistic.sqrt() + self.optimizer.eps)
            rows.sub_(gradient * rates[:, None])


def train(
    bags: tbe_aot.TableBatchedEmbeddingBags, batches: Sequence[Batch], epochs: int
) -> list[Epoch]:
    """Train the tables on the batches, again and again, beside the same training in float64."""
    optimizer = bags.optimizer
    if not isinstance(optimizer, tbe_aot.RowwiseAdagrad):
        raise TypeError(f"the tables' optimizer is {optimizer}, expected row-wise Adagrad")
    exact = Float64Run(bags.table_views().values(), batches, optimizer)
    step = make_step(bags)
    tolerance = LOSS_TOLERANCE[bags.weights_dtype]
    done = []
    for _ in range(epochs):
        losses, exact_losses, seconds = [], [], []
        for number, batch in enumerate(batches):
            loss, took = timed(step, batch)
            losses.append(loss)
            exact_losses.append(exact.step(number, batch.clicks))
            seconds.append(took)
        found, wanted = torch.stack(losses).double(), torch.stack(exact_losses)
        worst = ((found - wanted).abs() / (tolerance * wanted)).max()
        done.append(Epoch(float(found.mean()), float(wanted.mean()), float(worst), median(seconds)))
    return done


def make_optimizer(batch: int) -> tbe_aot.RowwiseAdagrad:
    """Row-wise Adagrad for a mean over so many clicks: eps stays well below the gradient of a row, which has one click at least."""
    return tbe_aot.RowwiseAdagrad(lr=LEARNING_RATE, eps=0.02 / batch)


def is_learning(epochs: Sequence[Epoch]) -> bool:
    """Whether the loss went down by what is expected."""
    return epochs[-1].loss < FALL * epochs[0].loss


def sgd_of_torch(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """torch.optim.SGD."""
    return torch.optim.SGD(parameters, lr=1.0)


def adagrad_of_torch(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """torch.optim.Adagrad."""
    return torch.optim.Adagrad(parameters, lr=LEARNING_RATE, eps=EPS)


def adam_of_torch(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """torch.optim.SparseAdam."""
    return torch.optim.SparseAdam(list(parameters), lr=LEARNING_RATE, betas=BETAS, eps=EPS)


OPTIMIZERS: tuple[
    tuple[tbe_aot.Optimizer, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]], ...
] = (
    (tbe_aot.SGD(lr=1.0), sgd_of_torch),
    (tbe_aot.Adagrad(lr=LEARNING_RATE, eps=EPS), adagrad_of_torch),
    (tbe_aot.Adam(lr=LEARNING_RATE, betas=BETAS, eps=EPS), adam_of_torch),
)


def make_torch_step(
    tables: Iterable[torch.Tensor],
    make_sparse: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    dtype: torch.dtype = torch.float32,
) -> tuple[_Step, list[nn.Parameter]]:
    """The step with 26 torch.nn.EmbeddingBag and an optimizer of torch's, all in one dtype, and the tables that it trains."""
    modules = [
        nn.EmbeddingBag.from_pretrained(
            table.to(dtype, copy=True), mode="sum", freeze=False, sparse=True
        )
        for table in tables
    ]
    weights = [parameter for module in modules for parameter in module.parameters()]
    top = make_top(weights[0].device).to(dtype)
    dense = torch.optim.SGD(top.parameters(), lr=DENSE_LEARNING_RATE)
    sparse = make_sparse(weights)
    count = 0

    def step(batch: Batch) -> torch.Tensor:
        nonlocal count
        count += 1
        if isinstance(sparse, torch.optim.SparseAdam):
            # It adds eps to the root before the correction of its bias, ours after it.
            sparse.param_groups[0]["eps"] = EPS * (1 - BETAS[1] ** count) ** 0.5
        pooled = [module(*inputs) for module, inputs in zip(modules, batch.features(), strict=True)]
        loss = loss_of(top, torch.cat(pooled, dim=1), batch.clicks)
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()
        return loss.detach()

    return step, weights


def compare_with_torch(
    bags: tbe_aot.TableBatchedEmbeddingBags,
    make_sparse: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    batches: Sequence[Batch],
) -> TorchComparison:
    """Train copies of the same float32 tables on the same batches with both, and compare every weight with float64's.

    torch adds the gradients of a row one after the other in float32; where a row is hit often that loses digits.
    """
    torch_step, torch_weights = make_torch_step(bags.table_views().values(), make_sparse)
    exact_step, exact = make_torch_step(bags.table_views().values(), make_sparse, torch.float64)
    name = make_sparse([nn.Parameter(torch.zeros(1))]).__class__.__name__
    step = make_step(bags)
    seconds: dict[_Step, list[float]] = {step: [], torch_step: []}
    for batch in batches:
        for each, taken in seconds.items():
            taken.append(timed(each, batch)[1])
        exact_step(batch)
    bound = WEIGHT_TOLERANCE[name]
    # The first step is not counted.
    ours, theirs = (median(taken[1:]) for taken in seconds.values())
    return TorchComparison(
        name,
        ours,
        theirs,
        _worst(bags.table_views().values(), exact, bound),
        _worst(torch_weights, exact, bound),
    )


def _worst(found: Iterable[torch.Tensor], exact: Iterable[torch.Tensor], bound: float) -> float:
    errors = [
        (
            (mine.detach() - wanted.detach()).abs() / (bound * wanted.detach().abs().clamp(min=1))
        ).max()
        for mine, wanted in zip(found, exact, strict=True)
    ]
    return float(torch.stack(errors).max())  # Of torch: it keeps NaN.
