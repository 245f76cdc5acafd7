"""Lookups for the GPU tests: tables, feature metadata built from the documented format, and a float64 oracle on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import tbe_aot

TOLERANCE = {torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 8e-3}
"""Allowed error by output dtype, times max(1, sum |w * row|)."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LAYOUT_VERSION = 1


@dataclass(frozen=True)
class Tables:
    """Tables in one 1-D tensor. ``starts`` and ``pitches`` are in elements."""

    weights: torch.Tensor
    starts: list[int]
    pitches: list[int]
    rows: list[int]
    dims: list[int]

    def view(self, table: int) -> torch.Tensor:
        """[rows, dim] of one table."""
        size = (self.rows[table], self.dims[table])
        stride = (self.pitches[table], 1)
        offset = self.weights.storage_offset() + self.starts[table]
        return self.weights.as_strided(size, stride, offset)


def unit(dtype: torch.dtype) -> int:
    """Elements in 16 bytes."""
    return 16 // dtype.itemsize


def make_tables(
    rows: Sequence[int],
    dims: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    *,
    seed: int = 0,
    padding: int | None = None,
    misalign: int = 0,
) -> Tables:
    """Random tables; the gaps between rows hold NaN, so that reading one shows.

    ``padding`` elements follow each row (None: up to the next 16 bytes); ``misalign`` moves the first element off the
    allocation's start.
    """
    step = unit(dtype)
    pitches = [-(-dim // step) * step if padding is None else dim + padding for dim in dims]
    sizes = [count * pitch for count, pitch in zip(rows, pitches, strict=True)]
    starts = [sum(sizes[:t]) for t in range(len(sizes))]
    storage = torch.full((sum(sizes) + misalign,), torch.nan, dtype=dtype, device=device)
    tables = Tables(storage[misalign:], starts, pitches, list(rows), list(dims))
    generator = torch.Generator(device=device).manual_seed(seed)
    for t in range(len(dims)):
        view = tables.view(t)
        view.copy_(torch.randn(view.shape, generator=generator, device=device))
    return tables


def bucket_of(dim: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds ``dim``."""
    return min(bucket for bucket in buckets if bucket >= dim)


def make_metadata(
    tables: Tables, feature_tables: Sequence[int], buckets: Sequence[int]
) -> tuple[torch.Tensor, list[int]]:
    """(features, layout) as the operators document them; feature t looks up table ``feature_tables[t]``."""
    step = unit(tables.weights.dtype)
    dims = [tables.dims[table] for table in feature_tables]
    columns = [sum(dims[:position]) for position in range(len(dims))]
    width = sum(dims)
    groups: dict[tuple[int, bool], list[int]] = {}
    for position, table in enumerate(feature_tables):
        padded = tables.starts[table] % step == 0 and tables.pitches[table] % step == 0
        groups.setdefault((bucket_of(dims[position], buckets), padded), []).append(position)
    slots: list[int] = []
    described: list[int] = []
    for (bucket, padded), positions in sorted(groups.items()):
        vectors = [dims[p] % step == 0 and columns[p] % step == 0 for p in positions]
        aligned = 2 if all(vectors) and width % step == 0 else 1
        slots += sorted(positions, key=lambda p: (feature_tables[p], p))
        described += [bucket, aligned if padded else 0, len(positions)]
    # Global rows are numbered in the order of the slots, so that sorted rows are in the order of the launches.
    order = dict.fromkeys([*(feature_tables[p] for p in slots), *range(len(tables.rows))])
    first_rows, total_rows = {}, 0
    for table in order:
        first_rows[table] = total_rows
        total_rows += tables.rows[table]
    entries = []
    for position in slots:
        table = feature_tables[position]
        entry = [position, tables.starts[table], tables.pitches[table], dims[position]]
        entries.append([*entry, tables.rows[table], columns[position], table, first_rows[table]])
    ends = [tables.starts[t] + tables.rows[t] * tables.pitches[t] for t in feature_tables]
    most_rows = max((tables.rows[t] for t in feature_tables), default=0)
    layout = [LAYOUT_VERSION, len(slots), width, max(ends, default=0), total_rows, most_rows]
    features = torch.tensor(entries, dtype=torch.int64).reshape(-1, 8)
    return features.to(tables.weights.device), layout + described


@dataclass(frozen=True)
class Vbe:
    """The two VBE tensors and their sizes."""

    bag_offsets: torch.Tensor
    output_offsets: torch.Tensor
    max_batch: int
    output_numel: int


@dataclass(frozen=True)
class Lookup:
    """Arguments of one forward call; ``bag_counts[t]`` bags of feature t, ``ends`` are the offsets on the host."""

    tables: Tables
    feature_tables: list[int]
    features: torch.Tensor
    layout: list[int]
    indices: torch.Tensor
    offsets: torch.Tensor
    per_sample_weights: torch.Tensor | None
    bag_counts: list[int]
    ends: list[int]
    vbe: Vbe | None = None
    _expected: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def arguments(
        self, pooling: str = "sum", output_dtype: torch.dtype = torch.float32
    ) -> list[object]:
        """The operator's positional arguments."""
        args: list[object] = [self.tables.weights, self.features, self.layout]
        args += [self.indices, self.offsets, self.per_sample_weights, pooling]
        args.append(str(output_dtype).removeprefix("torch."))
        if self.vbe is not None:
            args += [self.vbe.bag_offsets, self.vbe.output_offsets]
            args += [self.vbe.max_batch, self.vbe.output_numel]
        return args

    def run(self, pooling: str = "sum", output_dtype: torch.dtype = torch.float32) -> torch.Tensor:
        output: torch.Tensor = torch.ops.tbe_aot.forward(*self.arguments(pooling, output_dtype))
        return output

    def run_checked(
        self,
        pooling: str = "sum",
        output_dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(result, checked offsets) of the operator with a bounds check."""
        arguments = self.arguments(pooling, output_dtype)
        result: tuple[torch.Tensor, torch.Tensor] = torch.ops.tbe_aot.forward_checked(
            *arguments, **options
        )
        return result

    def expected(self, pooling: str) -> tuple[torch.Tensor, torch.Tensor]:
        """(result, error scale max(1, sum |w * row|)) in float64, in the output's layout."""
        if pooling not in self._expected:
            self._expected[pooling] = self._compute(pooling)
        return self._expected[pooling]

    def _compute(self, pooling: str) -> tuple[torch.Tensor, torch.Tensor]:
        device = self.indices.device
        results, scales = [], []
        bag = 0
        for table, count in zip(self.feature_tables, self.bag_counts, strict=True):
            start, end = self.ends[bag], self.ends[bag + count]
            lengths = torch.diff(self.offsets[bag : bag + count + 1].long())
            owner = torch.repeat_interleave(
                torch.arange(count, device=device), lengths, output_size=end - start
            )
            index = self.indices[start:end].long()
            rows = self.tables.view(table)[index.clamp(min=0)].double()
            rows *= (index >= 0)[:, None]
            if self.per_sample_weights is not None:
                rows *= self.per_sample_weights[start:end].float().double()[:, None]
            total = torch.zeros(count, rows.shape[1], dtype=torch.float64, device=device)
            scale = torch.zeros_like(total).index_add_(0, owner, rows.abs())
            total.index_add_(0, owner, rows)
            if pooling == "mean":
                total /= lengths.clamp(min=1)[:, None]
                scale /= lengths.clamp(min=1)[:, None]
            results.append(total)
            scales.append(scale.clamp(min=1.0))
            bag += count
        return self._assemble(results), self._assemble(scales)

    def _assemble(self, parts: list[torch.Tensor]) -> torch.Tensor:
        if self.vbe is None:
            return torch.cat(parts, dim=1)
        flat = torch.full(
            (self.vbe.output_numel,), torch.nan, dtype=torch.float64, device=parts[0].device
        )
        bag = 0
        for part in parts:
            starts = self.vbe.output_offsets[bag : bag + part.shape[0]]
            flat[starts[:, None] + torch.arange(part.shape[1], device=flat.device)] = part
            bag += part.shape[0]
        return flat


def make_lookup(
    tables: Tables,
    feature_tables: Sequence[int],
    buckets: Sequence[int],
    lengths: torch.Tensor,
    *,
    index_dtype: torch.dtype = torch.int64,
    offset_dtype: torch.dtype | None = None,
    weighted: bool = False,
    batch_sizes: Sequence[Sequence[int]] | None = None,
    pruned: float = 0.0,
    seed: int = 0,
) -> Lookup:
    """Random lookups with the given bag lengths (CPU int64 [bags], feature-major).

    ``batch_sizes`` makes it VBE; ``pruned`` is the share of indices that are -1.
    """
    device = tables.weights.device
    generator = torch.Generator().manual_seed(seed)
    features = len(feature_tables)
    if batch_sizes is None:
        bag_counts = [lengths.numel() // features] * features
    else:
        bag_counts = [sum(per_rank) for per_rank in batch_sizes]
    ends = [0, *torch.cumsum(lengths, 0).tolist()]
    parts = []
    bag = 0
    for table, count in zip(feature_tables, bag_counts, strict=True):
        size = ends[bag + count] - ends[bag]
        parts.append(torch.randint(0, max(tables.rows[table], 1), (size,), generator=generator))
        bag += count
    indices = torch.cat(parts)
    indices[torch.rand(indices.shape, generator=generator) < pruned] = -1
    weights = torch.rand(indices.shape, generator=generator) * 2 - 0.5
    metadata, layout = make_metadata(tables, feature_tables, buckets)
    vbe = None
    if batch_sizes is not None:
        counts = [list(per_rank) for per_rank in batch_sizes]
        dims = [tables.dims[t] for t in feature_tables]
        vbe = Vbe(*tbe_aot.vbe_layout(counts, dims, device))
    return Lookup(
        tables,
        list(feature_tables),
        metadata,
        layout,
        indices.to(index_dtype).to(device),
        torch.tensor(ends, dtype=offset_dtype or index_dtype).to(device),
        weights.to(device) if weighted else None,
        bag_counts,
        ends,
        vbe,
    )


def worst_error(actual: torch.Tensor, lookup: Lookup, pooling: str) -> float:
    """The largest |actual - float64| / max(1, sum |w * row|); infinite where ``actual`` is not finite."""
    result, scale = lookup.expected(pooling)
    if actual.shape != result.shape:
        message = f"output {list(actual.shape)}, expected {list(result.shape)}"
        raise AssertionError(message)
    if actual.numel() == 0:
        return 0.0
    error = (actual.double() - result).abs() / scale
    return float(torch.nan_to_num(error, nan=torch.inf).max())


def assert_right(
    lookup: Lookup, pooling: str = "sum", output_dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Run, compare with the oracle, return the output."""
    output = lookup.run(pooling, output_dtype)
    assert output.dtype == output_dtype
    assert worst_error(output, lookup, pooling) <= TOLERANCE[output_dtype]
    return output
