"""Backward updates for the GPU tests: their arguments, the optimizer's state, and a float64 oracle on the same device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests import oracle
from tests.gpu.support import Lookup, Tables

OPTIMIZERS = ("sgd", "rowwise_adagrad", "adagrad", "adam")
DECAYS = ("none", "l2", "decoupled")
STATE_TOLERANCE = 1e-4
"""Allowed error of an optimizer's state, times max(1, |state|)."""
SAMPLE_WEIGHTS_TOLERANCE = 1e-5
"""Allowed error of a per-sample weight's gradient, times max(1, sum |row * gradient|)."""


def weight_tolerance(optimizer: str, dtype: torch.dtype) -> float:
    """Allowed error of a weight after a step, times max(1, |weight|)."""
    if optimizer == "sgd":
        return 1e-5 if dtype == torch.float32 else 5e-3
    return 1e-4 if dtype == torch.float32 else 1e-2


def make_optimizer(name: str, decay: str = "none", **numbers: float) -> oracle.Optimizer:
    """An optimizer whose numbers make every term of its formula count."""
    # Without a statistic to divide by, the step is as long as the gradient, and so is its error.
    rate = 0.05 if name == "sgd" else 0.3
    numbers = {"learning_rate": rate, "eps": 1e-2, "weight_decay": 0.2, **numbers}
    return oracle.Optimizer(name, weight_decay_mode=decay, **numbers)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have equal bits, NaN included."""
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.itemsize]
    return torch.equal(a.contiguous().view(width), b.contiguous().view(width))


def step_rows(
    optimizer: oracle.Optimizer,
    rows: torch.Tensor,
    g: torch.Tensor,
    state: dict[str, torch.Tensor],
    count: int,
) -> torch.Tensor:
    """``oracle.Optimizer.step`` for many rows at once: [U, dim]; the states, [U] or [U, dim], change in place."""
    if optimizer.name != "rowwise_adagrad":
        # Element by element: the formula of one row is that of all.
        return optimizer.step(rows, g, state, count)
    lr = optimizer.learning_rate
    l2 = optimizer.weight_decay if optimizer.weight_decay_mode == "l2" else 0.0
    decoupled = optimizer.weight_decay if optimizer.weight_decay_mode == "decoupled" else 0.0
    state["momentum1"] += ((g + l2 * rows) ** 2).mean(dim=1)
    mult = (lr / (state["momentum1"].sqrt() + optimizer.eps))[:, None]
    return (1 - lr * decoupled - mult * l2) * rows - mult * g


@dataclass(frozen=True)
class FeatureLookups:
    """The lookups of one feature, in float64: what each adds to the gradient of its row.

    ``index`` [n] with -1 for pruned rows; ``gradient`` [n, dim] of the bag, unscaled and clipped; ``factor`` [n], what
    it is multiplied by less the per-sample weight (1 / L for MEAN); ``start`` of its lookups in the indices.
    """

    table: int
    start: int
    index: torch.Tensor
    gradient: torch.Tensor
    factor: torch.Tensor


@dataclass(frozen=True)
class Expected:
    """Per table: the rows that are looked up, [U], and their weights and states after the step in float64."""

    rows: list[torch.Tensor]
    weights: list[torch.Tensor]
    states: dict[str, list[torch.Tensor]]
    count: int


@dataclass(frozen=True)
class Training:
    """Arguments of ``backward_update`` on tables of its own; the padding between rows and state rows holds NaN."""

    lookup: Lookup
    optimizer: oracle.Optimizer
    grad_output: torch.Tensor
    learning_rate: torch.Tensor
    pooling: str = "sum"
    momentum1: torch.Tensor | None = None
    momentum2: torch.Tensor | None = None
    step: torch.Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)

    # --- the operators

    def lookup_arguments(self) -> dict[str, Any]:
        """What the three operators of the backward have in common."""
        lookup = self.lookup
        arguments: dict[str, Any] = {
            "features": lookup.features,
            "layout": lookup.layout,
            "indices": lookup.indices,
            "offsets": lookup.offsets,
            "pooling": self.pooling,
        }
        if lookup.vbe is not None:
            arguments["vbe_bag_offsets"] = lookup.vbe.bag_offsets
            arguments["vbe_output_offsets"] = lookup.vbe.output_offsets
            arguments["vbe_max_batch"] = lookup.vbe.max_batch
        return arguments

    def arguments(self) -> dict[str, Any]:
        """Arguments of ``backward_update``."""
        optimizer = self.optimizer
        return {
            **self.lookup_arguments(),
            "grad_output": self.grad_output,
            "weights": self.lookup.tables.weights,
            "optimizer": optimizer.name,
            "learning_rate": self.learning_rate,
            "momentum1": self.momentum1,
            "momentum2": self.momentum2,
            "step": self.step,
            "eps": optimizer.eps,
            "beta1": optimizer.beta1,
            "beta2": optimizer.beta2,
            "weight_decay": optimizer.weight_decay,
            "weight_decay_mode": optimizer.weight_decay_mode,
            "per_sample_weights": self.lookup.per_sample_weights,
            **self.options,
        }

    def run(self, **changes: Any) -> None:
        """Update the tables."""
        torch.ops.tbe_aot.backward_update(**{**self.arguments(), **changes})

    def transpose(self) -> torch.Tensor:
        """``transpose_indices`` of the lookups."""
        transposed: torch.Tensor = torch.ops.tbe_aot.transpose_indices(
            per_sample_weights=self.lookup.per_sample_weights, **self.lookup_arguments()
        )
        return transposed

    def sample_weights_gradient(self) -> torch.Tensor:
        """``per_sample_weights_gradient`` of the lookups."""
        gradient: torch.Tensor = torch.ops.tbe_aot.per_sample_weights_gradient(
            grad_output=self.grad_output,
            weights=self.lookup.tables.weights,
            **self.lookup_arguments(),
        )
        return gradient

    # --- what may change

    def mutated(self) -> list[torch.Tensor]:
        """What the update may change."""
        tensors = (self.lookup.tables.weights, self.momentum1, self.momentum2, self.step)
        return [tensor for tensor in tensors if tensor is not None]

    def snapshot(self) -> list[torch.Tensor]:
        """Copies of what the update may change."""
        return [tensor.clone() for tensor in self.mutated()]

    def restore(self, snapshot: list[torch.Tensor]) -> None:
        """Put back what a snapshot holds."""
        for now, before in zip(self.mutated(), snapshot, strict=True):
            now.copy_(before)

    def equals(self, snapshot: list[torch.Tensor]) -> bool:
        """Whether all bits are those of a snapshot."""
        return all(map(same_bits, self.mutated(), snapshot))

    def tables(self) -> list[torch.Tensor]:
        """Every table as [rows, dim]."""
        return [self.lookup.tables.view(t) for t in range(len(self.lookup.tables.dims))]

    def states(self) -> dict[str, list[torch.Tensor]]:
        """momentum1 and momentum2 as views per table: [rows] or [rows, dim]."""
        found = {"momentum1": self.momentum1, "momentum2": self.momentum2}
        return {
            name: state_views(self.lookup, state, per_row=self.optimizer.name == "rowwise_adagrad")
            for name, state in found.items()
            if state is not None
        }

    # --- the oracle

    def feature_lookups(self) -> Iterator[FeatureLookups]:
        """The lookups of each feature, with the gradient unscaled and clipped."""
        lookup = self.lookup
        grad = self.grad_output.double()
        if self.options.get("gradient_scale") is not None:
            grad = grad / self.options["gradient_scale"].double()
        clip = self.options.get("gradient_clip", 0.0)
        if clip:
            grad = grad.clamp(-clip, clip)
        bag, column = 0, 0
        for table, count in zip(lookup.feature_tables, lookup.bag_counts, strict=True):
            dim = lookup.tables.dims[table]
            start, end = lookup.ends[bag], lookup.ends[bag + count]
            lengths = torch.diff(lookup.offsets[bag : bag + count + 1].long())
            owner = torch.repeat_interleave(
                torch.arange(count, device=grad.device), lengths, output_size=end - start
            )
            if lookup.vbe is None:
                gradient = grad[:, column : column + dim]
            else:
                starts = lookup.vbe.output_offsets[bag : bag + count]
                gradient = grad[starts[:, None] + torch.arange(dim, device=grad.device)]
            factor = torch.ones(end - start, dtype=torch.float64, device=grad.device)
            if self.pooling == "mean":
                factor /= lengths[owner]
            index = lookup.indices[start:end].long()
            yield FeatureLookups(table, start, index, gradient[owner], factor)
            bag += count
            column += dim

    def expected(self) -> Expected:
        """What the update shall make of the tables; call it before the update."""
        tables = self.tables()
        parts: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in tables]
        for mine in self.feature_lookups():
            factor = mine.factor
            if self.lookup.per_sample_weights is not None:
                weights = self.lookup.per_sample_weights[mine.start :][: factor.numel()]
                factor = factor * weights.float().double()
            kept = mine.index >= 0
            parts[mine.table].append((mine.index[kept], (mine.gradient * factor[:, None])[kept]))
        states = self.states()
        count = 1 if self.step is None else int(self.step) + 1
        expected = Expected([], [], {name: [] for name in states}, count)
        for t, table in enumerate(tables):
            index = torch.cat([index for index, _ in parts[t]] or [table.new_zeros(0).long()])
            rows, inverse = torch.unique(index, return_inverse=True)
            sums = table.new_zeros(rows.numel(), table.shape[1], dtype=torch.float64)
            if index.numel():
                sums.index_add_(0, inverse, torch.cat([terms for _, terms in parts[t]]))
            state = {name: views[t][rows].double() for name, views in states.items()}
            stepped = step_rows(self.optimizer, table[rows].double(), sums, state, count)
            expected.rows.append(rows)
            expected.weights.append(stepped)
            for name, values in state.items():
                expected.states[name].append(values)
        return expected

    def faults(self, expected: Expected, before: list[torch.Tensor]) -> list[str]:
        """What is wrong after an update; ``before`` is the snapshot before it, and is changed."""
        found = []
        tolerance = weight_tolerance(self.optimizer.name, self.lookup.tables.weights.dtype)
        compared = [("weights", self.tables(), expected.weights, tolerance)]
        for name, views in self.states().items():
            compared.append((name, views, expected.states[name], STATE_TOLERANCE))
        for name, views, wanted, allowed in compared:
            for t, rows in enumerate(expected.rows):
                error = worst_error(views[t][rows].double(), wanted[t])
                if not error <= allowed:
                    shape = list(views[t].shape)
                    found.append(f"{name} of table {t} {shape}: error {error:.2e} > {allowed:.0e}")
        if self.step is not None and int(self.step) != expected.count:
            found.append(f"step is {int(self.step)}, expected {expected.count}")
        # Everything but the touched rows, padding included, has the bits that it had.
        earlier = self.holding(dict(zip(self.mutated_names(), before, strict=True)))
        pairs = [(self.tables(), earlier.tables())]
        pairs += [(views, earlier.states()[name]) for name, views in self.states().items()]
        for now, then in pairs:
            for t, rows in enumerate(expected.rows):
                then[t][rows] = now[t][rows]
        for name, now_all, then_all in zip(
            self.mutated_names(), self.mutated(), before, strict=True
        ):
            if name != "step" and not same_bits(now_all, then_all):
                found.append(f"{name}: something changed beside the rows that were looked up")
        return found

    def holding(self, tensors: dict[str, torch.Tensor]) -> Training:
        """The same training of other weights and states, given by the names of ``mutated_names``."""
        tables = replace(self.lookup.tables, weights=tensors["weights"])
        return replace(
            self,
            lookup=replace(self.lookup, tables=tables, _expected={}),
            momentum1=tensors.get("momentum1"),
            momentum2=tensors.get("momentum2"),
            step=tensors.get("step"),
        )

    def mutated_names(self) -> list[str]:
        """Names of what ``mutated`` returns."""
        named = {
            "weights": self.lookup.tables.weights,
            "momentum1": self.momentum1,
            "momentum2": self.momentum2,
            "step": self.step,
        }
        return [name for name, tensor in named.items() if tensor is not None]

    def check(self, **changes: Any) -> list[str]:
        """Update and compare with the oracle; what is wrong."""
        expected = self.expected()
        before = self.snapshot()
        self.run(**changes)
        return self.faults(expected, before)

    def verify(self, **changes: Any) -> None:
        """Update and compare with the oracle."""
        faults = self.check(**changes)
        assert not faults, faults

    def sample_weights_faults(self) -> list[str]:
        """Compare the gradient of the per-sample weights with the oracle; what is wrong."""
        actual = self.sample_weights_gradient()
        found = [] if actual.dtype == torch.float32 else [f"dtype {actual.dtype}"]
        if actual.shape != self.lookup.indices.shape:
            return [*found, f"shape {list(actual.shape)}"]
        tables = self.tables()
        for f, mine in enumerate(self.feature_lookups()):
            rows = tables[mine.table][mine.index.clamp(min=0)].double()
            terms = rows * mine.gradient * (mine.factor * (mine.index >= 0))[:, None]
            part = actual[mine.start :][: mine.index.numel()].double()
            scale = terms.abs().sum(1).clamp(min=1)
            error = largest((part - terms.sum(1)).abs() / scale)
            if not error <= SAMPLE_WEIGHTS_TOLERANCE:
                found.append(f"feature {f}: error {error:.2e} > {SAMPLE_WEIGHTS_TOLERANCE:.0e}")
            if bool(part[mine.index < 0].any()):
                found.append(f"feature {f}: a pruned row has a gradient")
        return found


def largest(errors: torch.Tensor) -> float:
    """The largest element; infinite where one is not finite."""
    if errors.numel() == 0:
        return 0.0
    return float(torch.nan_to_num(errors, nan=torch.inf).max())


def worst_error(actual: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest |actual - wanted| / max(1, |wanted|)."""
    return largest((actual - wanted).abs() / wanted.abs().clamp(min=1))


def first_global_rows(lookup: Lookup) -> dict[int, int]:
    """The first global row of every table that a feature looks up."""
    return {entry[6]: entry[7] for entry in lookup.features.tolist()}


def state_views(lookup: Lookup, state: torch.Tensor, *, per_row: bool) -> list[torch.Tensor]:
    """Per table its part of a state: [rows], or [rows, dim] as the weights are laid out."""
    tables = lookup.tables
    if per_row:
        first = first_global_rows(lookup)
        # A table that no feature looks up has no rows here.
        return [
            state[first[t] :][:rows] if t in first else state[:0]
            for t, rows in enumerate(tables.rows)
        ]
    shaped = replace(tables, weights=state)
    return [shaped.view(t) for t in range(len(tables.rows))]


def copy_tables(tables: Tables) -> Tables:
    """Tables of their own, as far off the allocation's start as the others are."""
    shift = tables.weights.storage_offset()
    storage = tables.weights.new_empty(tables.weights.numel() + shift)
    storage[shift:] = tables.weights
    return replace(tables, weights=storage[shift:])


def make_gradient(
    lookup: Lookup, dtype: torch.dtype = torch.float32, seed: int = 0
) -> torch.Tensor:
    """A random gradient of the lookup's result, the same on every device."""
    shape: tuple[int, ...]
    if lookup.vbe is not None:
        shape = (lookup.vbe.output_numel,)
    else:
        shape = (lookup.bag_counts[0], lookup.layout[2])
    generator = torch.Generator().manual_seed(seed + 7)
    return torch.randn(shape, generator=generator).to(dtype).to(lookup.indices.device)


def make_training(
    lookup: Lookup,
    optimizer: oracle.Optimizer | str,
    *,
    grad_output: torch.Tensor | None = None,
    grad_dtype: torch.dtype = torch.float32,
    pooling: str = "sum",
    **options: Any,
) -> Training:
    """An update of a copy of the lookup's tables, with states that are not 0; Adam has made 4 steps before."""
    if isinstance(optimizer, str):
        optimizer = make_optimizer(optimizer)
    lookup = replace(lookup, tables=copy_tables(lookup.tables), _expected={})
    device = lookup.indices.device
    name = optimizer.name
    per_row = name == "rowwise_adagrad"
    generator = torch.Generator().manual_seed(3)

    def state(low: float) -> torch.Tensor:
        numel = lookup.layout[4] if per_row else lookup.tables.weights.numel()
        made = torch.full((numel,), torch.nan, device=device)
        for view in state_views(lookup, made, per_row=per_row):
            view.copy_(torch.rand(view.shape, generator=generator) + low)
        return made

    return Training(
        lookup,
        optimizer,
        make_gradient(lookup, grad_dtype) if grad_output is None else grad_output,
        torch.tensor([optimizer.learning_rate], device=device),
        pooling,
        None if name == "sgd" else state(-0.5 if name == "adam" else 0.1),
        state(0.1) if name == "adam" else None,
        torch.tensor([4], device=device) if name == "adam" else None,
        options,
    )
