"""Backward updates for the operator tests: arguments, state of the optimizer, and what the oracle says of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

import tbe_aot
from tests import oracle
from tests.operators.support import Lookup

OPTIMIZERS = ("sgd", "rowwise_adagrad", "adagrad", "adam")
DECAYS = ("none", "l2", "decoupled")
WEIGHT_TOLERANCE = {
    "sgd": {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-3},
    "rowwise_adagrad": {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2},
    "adagrad": {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2},
    "adam": {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2},
}
"""Allowed error of a weight after a step, times max(1, |weight|)."""
STATE_TOLERANCE = 1e-4


def make_optimizer(name: str, decay: str = "none", **numbers: float) -> oracle.Optimizer:
    """An optimizer whose numbers make every term of its formula count."""
    numbers = {"learning_rate": 0.3, "eps": 1e-2, "weight_decay": 0.2, **numbers}
    return oracle.Optimizer(name, weight_decay_mode=decay, **numbers)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers: equal when their bits are."""
    return tensor.contiguous().view(torch.int32 if tensor.itemsize == 4 else torch.int16)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


@dataclass(frozen=True)
class Training:
    """Arguments of ``backward_update``; the padding between rows and state rows holds NaN."""

    lookup: Lookup
    optimizer: oracle.Optimizer
    grad_output: torch.Tensor
    pooling: str = "sum"
    momentum1: torch.Tensor | None = None
    momentum2: torch.Tensor | None = None
    step: torch.Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        lookup, optimizer = self.lookup, self.optimizer
        arguments: dict[str, Any] = {
            "grad_output": self.grad_output,
            "weights": lookup.weights,
            "features": lookup.metadata.features,
            "layout": lookup.metadata.layout,
            "indices": lookup.indices,
            "offsets": lookup.offsets,
            "optimizer": optimizer.name,
            "learning_rate": torch.tensor([optimizer.learning_rate]),
            "momentum1": self.momentum1,
            "momentum2": self.momentum2,
            "step": self.step,
            "eps": optimizer.eps,
            "beta1": optimizer.beta1,
            "beta2": optimizer.beta2,
            "weight_decay": optimizer.weight_decay,
            "weight_decay_mode": optimizer.weight_decay_mode,
            "per_sample_weights": lookup.per_sample_weights,
            "pooling": self.pooling,
        }
        if lookup.batch_sizes is not None:
            bag_offsets, output_offsets, max_batch, _ = vbe_of(lookup)
            arguments |= {
                "vbe_bag_offsets": bag_offsets,
                "vbe_output_offsets": output_offsets,
                "vbe_max_batch": max_batch,
            }
        return arguments | self.options

    def run(self) -> None:
        torch.ops.tbe_aot.backward_update(**self.arguments())

    def mutated(self) -> list[torch.Tensor]:
        """What the operator may change."""
        tensors = (self.lookup.weights, self.momentum1, self.momentum2, self.step)
        return [tensor for tensor in tensors if tensor is not None]

    def snapshot(self) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in self.mutated()]

    def equals(self, snapshot: list[torch.Tensor]) -> bool:
        """Whether all bits are those of a snapshot."""
        return all(
            same_bits(now.view(torch.int32), before.view(torch.int32))
            if now.itemsize == 8
            else same_bits(now, before)
            for now, before in zip(self.mutated(), snapshot, strict=True)
        )

    def states(self) -> dict[str, list[torch.Tensor]]:
        """momentum1 and momentum2 as views per table."""
        found = {"momentum1": self.momentum1, "momentum2": self.momentum2}
        return {
            name: state_views(self.lookup, state)
            for name, state in found.items()
            if state is not None
        }

    def row_gradients(self) -> dict[tuple[int, int], torch.Tensor]:
        lookup = self.lookup
        grad = self.grad_output.double()
        if self.options.get("gradient_scale") is not None:
            grad /= self.options["gradient_scale"].double()
        clip = self.options.get("gradient_clip", 0.0)
        return oracle.row_gradients(
            grad.clamp(-clip, clip) if clip else grad,
            lookup.features(),
            lookup.metadata.feature_tables,
            lookup.indices,
            lookup.offsets,
            lookup.per_sample_weights,
            self.pooling,
            lookup.batch_sizes,
        )

    def verify(self) -> None:
        """Run the operator and compare with the oracle; rows that no lookup hits must keep their bits."""
        tables = [table.double() for table in self.lookup.tables]
        states = {name: [v.double() for v in views] for name, views in self.states().items()}
        gradients = self.row_gradients()
        count = 1 if self.step is None else int(self.step) + 1
        before = self.snapshot()
        oracle.update(self.optimizer, tables, states, gradients, count)
        self.run()
        tolerance = WEIGHT_TOLERANCE[self.optimizer.name][self.lookup.weights.dtype]
        expect_close(self.lookup.tables, tables, tolerance)
        for name, views in self.states().items():
            expect_close(views, states[name], STATE_TOLERANCE)
        if self.step is not None:
            assert int(self.step) == count
        self.expect_untouched(before, set(gradients))

    def expect_untouched(self, before: list[torch.Tensor], touched: set[tuple[int, int]]) -> None:
        """Everything but the touched rows of weights and states, padding included, has the bits it had."""
        for now, then in zip(self.mutated(), before, strict=True):
            if now.dtype == torch.int64:
                continue
            now_kept, then_kept = now.clone(), then.clone()
            for tensor in (now_kept, then_kept):
                views = state_views(self.lookup, tensor)
                for table, row in touched:
                    views[table][row] = 0
            assert same_bits(now_kept, then_kept)


def expect_close(
    actual: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float
) -> None:
    for found, wanted in zip(actual, expected, strict=True):
        error = (found.double() - wanted).abs()
        assert bool((error <= tolerance * wanted.abs().clamp(min=1)).all()), error.max()


def state_views(lookup: Lookup, state: torch.Tensor) -> list[torch.Tensor]:
    """Per table its part of the weights, or of a state: [rows, dim], or [rows] for a number per row."""
    metadata = lookup.metadata
    if state.numel() != metadata.weights_numel:
        return [
            state[start : start + table.shape[0]]
            for start, table in zip(metadata.first_global_rows, lookup.tables, strict=True)
        ]
    return [
        state.as_strided(table.shape, (pitch, 1), offset)
        for table, pitch, offset in zip(
            lookup.tables, metadata.row_pitches, metadata.table_offsets, strict=True
        )
    ]


def vbe_of(lookup: Lookup) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    assert lookup.batch_sizes is not None
    return tbe_aot.vbe_layout(lookup.batch_sizes, lookup.metadata.feature_dims, torch.device("cpu"))


def make_grad(lookup: Lookup, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """A gradient of the lookup's result."""
    if lookup.batch_sizes is not None:
        shape: tuple[int, ...] = (vbe_of(lookup)[3],)
    else:
        metadata = lookup.metadata
        batch = (lookup.offsets.numel() - 1) // len(metadata.feature_tables)
        shape = (batch, sum(metadata.feature_dims))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 7)).to(dtype)


def make_training(
    lookup: Lookup,
    optimizer: oracle.Optimizer | str,
    *,
    grad_output: torch.Tensor | None = None,
    grad_dtype: torch.dtype = torch.float32,
    pooling: str = "sum",
    **options: Any,
) -> Training:
    """An update of its own copy of the lookup's tables, with states that are not 0; Adam has made 4 steps before."""
    if isinstance(optimizer, str):
        optimizer = make_optimizer(optimizer)
    weights = lookup.weights.clone()
    lookup = lookup.with_(weights=weights, tables=state_views(lookup, weights))
    generator = torch.Generator().manual_seed(3)

    def state(per_row: bool, signed: bool) -> torch.Tensor:
        rows = sum(table.shape[0] for table in lookup.tables)
        made = torch.full((rows if per_row else weights.numel(),), torch.nan)
        for view in state_views(lookup, made):
            view.copy_(torch.rand(view.shape, generator=generator) + (-0.5 if signed else 0.1))
        return made

    name = optimizer.name
    return Training(
        lookup,
        optimizer,
        make_grad(lookup, grad_dtype) if grad_output is None else grad_output,
        pooling,
        None if name == "sgd" else state(name == "rowwise_adagrad", name == "adam"),
        state(False, False) if name == "adam" else None,
        torch.tensor([4]) if name == "adam" else None,
        options,
    )
