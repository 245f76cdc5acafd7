"""Lookups for the operator tests: tables, arguments of the operators, and what the oracle says of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tbe_aot
from tbe_aot._rules import dtype_name
from tbe_aot.features import FeatureMetadata
from tests import oracle

WEIGHT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
OUTPUT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
INDEX_DTYPES = (torch.int32, torch.int64)


@dataclass(frozen=True)
class Lookup:
    """Arguments of the operators, and the tables as [rows, dim] views."""

    weights: torch.Tensor
    metadata: FeatureMetadata
    tables: list[torch.Tensor]
    indices: torch.Tensor
    offsets: torch.Tensor
    per_sample_weights: torch.Tensor | None = None
    batch_sizes: list[list[int]] | None = None

    def forward(
        self, pooling: str = "sum", output_dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """The operator's result."""
        result: torch.Tensor = torch.ops.tbe_aot.forward(*self.arguments(pooling, output_dtype))
        return result

    def arguments(
        self, pooling: str = "sum", output_dtype: torch.dtype = torch.float32
    ) -> tuple[Any, ...]:
        """The operator's arguments."""
        vbe: tuple[Any, ...] = ()
        if self.batch_sizes is not None:
            vbe = tbe_aot.vbe_layout(
                self.batch_sizes, self.metadata.feature_dims, torch.device("cpu")
            )
        return (
            self.weights,
            self.metadata.features,
            self.metadata.layout,
            self.indices,
            self.offsets,
            self.per_sample_weights,
            pooling,
            dtype_name(output_dtype),
            *vbe,
        )

    def features(self) -> list[oracle.Feature]:
        """The oracle's view of the features."""
        return [oracle.Feature(self.tables[table]) for table in self.metadata.feature_tables]

    def expected(self, pooling: str = "sum") -> tuple[torch.Tensor, torch.Tensor]:
        """The oracle's result and error scale."""
        if self.batch_sizes is not None:
            return oracle.forward_vbe(
                self.features(),
                self.indices,
                self.offsets,
                self.batch_sizes,
                self.per_sample_weights,
                pooling,
            )
        return oracle.forward(
            self.features(), self.indices, self.offsets, self.per_sample_weights, pooling
        )

    def verify(self, pooling: str = "sum", output_dtype: torch.dtype = torch.float32) -> None:
        """Run the operator and compare with the oracle."""
        actual = self.forward(pooling, output_dtype)
        expected, scale = self.expected(pooling)
        assert actual.dtype == output_dtype
        assert actual.shape == expected.shape
        assert oracle.within_tolerance(actual, expected, scale)

    def with_(self, **changes: Any) -> Lookup:
        """A copy with some attributes changed."""
        return replace(self, **changes)


def make_tables(
    specs: Sequence[tbe_aot.TableSpec],
    feature_tables: Sequence[str] | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> tuple[torch.Tensor, FeatureMetadata, list[torch.Tensor]]:
    """(weights, metadata, [rows, dim] views); the gaps between rows hold NaN, so that reading one shows."""
    metadata = tbe_aot.make_features(specs, feature_tables, dtype)
    weights = torch.full((metadata.weights_numel,), torch.nan, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    views = []
    for spec, start, pitch in zip(specs, metadata.table_offsets, metadata.row_pitches, strict=True):
        view = weights.as_strided((spec.rows, spec.dim), (pitch, 1), start)
        view.copy_(torch.randn(spec.rows, spec.dim, generator=generator))
        views.append(view)
    return weights, metadata, views


def make_lookup(
    dims: Sequence[int],
    rows: Sequence[int],
    lengths: Sequence[int],
    *,
    feature_tables: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    index_dtype: torch.dtype = torch.int64,
    offset_dtype: torch.dtype | None = None,
    weighted: bool = False,
    batch_sizes: list[list[int]] | None = None,
    pruned: float = 0.0,
    seed: int = 0,
) -> Lookup:
    """A lookup of bags of the given lengths, feature-major; ``pruned`` is the share of indices that are -1."""
    specs = [
        tbe_aot.TableSpec(f"table{t}", count, dim)
        for t, (count, dim) in enumerate(zip(rows, dims, strict=True))
    ]
    names = None if feature_tables is None else [f"table{t}" for t in feature_tables]
    weights, metadata, tables = make_tables(specs, names, dtype, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    features = len(metadata.feature_tables)
    counts = (
        [len(lengths) // features] * features
        if batch_sizes is None
        else [sum(sizes) for sizes in batch_sizes]
    )
    parts, bag = [], 0
    for table, count in zip(metadata.feature_tables, counts, strict=True):
        total = sum(lengths[bag : bag + count])
        parts.append(torch.randint(0, max(rows[table], 1), (total,), generator=generator))
        bag += count
    indices = torch.cat(parts)
    if pruned:
        indices[torch.rand(indices.shape, generator=generator) < pruned] = -1
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    sample_weights = torch.rand(indices.numel(), generator=generator) * 2 - 1 if weighted else None
    return Lookup(
        weights,
        metadata,
        tables,
        indices.to(index_dtype),
        offsets.to(offset_dtype or index_dtype),
        sample_weights,
        batch_sizes,
    )


def fake(value: Any, mode: FakeTensorMode) -> Any:
    return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value


def refusals(operator: str, arguments: Collection[Any]) -> tuple[str, str]:
    """(message of the eager call, message of the fake) of positional arguments."""
    call = getattr(torch.ops.tbe_aot, operator)
    with pytest.raises(RuntimeError) as eager:
        call(*arguments)
    with FakeTensorMode() as mode, pytest.raises(RuntimeError) as traced:
        call(*(fake(value, mode) for value in arguments))
    return str(eager.value), str(traced.value)
