"""What the operators compute, in float64 and in plain loops: the reference that every implementation is compared with.

Everything here is written for being read, from the definitions in ``docs/operators.md``, and shares no code with the
kernels, the launcher or the CPU operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

FORWARD_TOLERANCE = {torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 8e-3}
"""Allowed error of a forward by output dtype, times max(1, sum |w * row|)."""


@dataclass(frozen=True)
class Feature:
    """One feature and the table that it looks up: ``table`` is [rows, dim] of any floating dtype."""

    table: torch.Tensor


def bag_ranges(
    offsets: torch.Tensor, bags_per_feature: Sequence[int]
) -> list[list[tuple[int, int]]]:
    """For each feature the (start, end) of each of its bags."""
    flat = offsets.tolist()
    ranges, bag = [], 0
    for count in bags_per_feature:
        ranges.append([(flat[bag + b], flat[bag + b + 1]) for b in range(count)])
        bag += count
    return ranges


def pooled_bags(
    features: Sequence[Feature],
    indices: torch.Tensor,
    offsets: torch.Tensor,
    per_sample_weights: torch.Tensor | None,
    pooling: str,
    bags_per_feature: Sequence[int],
) -> tuple[list[list[torch.Tensor]], list[list[torch.Tensor]]]:
    """float64 result and error scale max(1, sum |w * row|) of every bag, as [feature][bag] of [dim]."""
    results, scales = [], []
    flat = indices.tolist()
    weights = None if per_sample_weights is None else per_sample_weights.float().double().tolist()
    for feature, bags in zip(features, bag_ranges(offsets, bags_per_feature), strict=True):
        table = feature.table.double()
        feature_results, feature_scales = [], []
        for start, end in bags:
            total = torch.zeros(table.shape[1], dtype=torch.float64)
            magnitude = torch.zeros_like(total)
            for i in range(start, end):
                if flat[i] == -1:
                    continue
                term = table[flat[i]] * (1.0 if weights is None else weights[i])
                total += term
                magnitude += term.abs()
            length = max(end - start, 1) if pooling == "mean" else 1
            feature_results.append(total / length)
            feature_scales.append(torch.clamp(magnitude / length, min=1.0))
        results.append(feature_results)
        scales.append(feature_scales)
    return results, scales


def forward(
    features: Sequence[Feature],
    indices: torch.Tensor,
    offsets: torch.Tensor,
    per_sample_weights: torch.Tensor | None = None,
    pooling: str = "sum",
) -> tuple[torch.Tensor, torch.Tensor]:
    """(result, error scale), both float64 [B, sum of dims]."""
    batch = (offsets.numel() - 1) // len(features)
    results, scales = pooled_bags(
        features, indices, offsets, per_sample_weights, pooling, [batch] * len(features)
    )
    width = sum(f.table.shape[1] for f in features)

    def assemble(parts: list[list[torch.Tensor]]) -> torch.Tensor:
        if batch == 0:
            return torch.zeros(0, width, dtype=torch.float64)
        return torch.cat([torch.stack(bags) for bags in parts], dim=1)

    return assemble(results), assemble(scales)


def forward_vbe(
    features: Sequence[Feature],
    indices: torch.Tensor,
    offsets: torch.Tensor,
    batch_sizes: Sequence[Sequence[int]],
    per_sample_weights: torch.Tensor | None = None,
    pooling: str = "sum",
) -> tuple[torch.Tensor, torch.Tensor]:
    """(result, error scale), both float64 and 1-D: rank-major, then feature, then sample.

    ``batch_sizes[f][r]`` is the number of bags of feature f for rank r; bags are feature-major, then rank, then sample.
    """
    counts = [sum(per_rank) for per_rank in batch_sizes]
    results, scales = pooled_bags(features, indices, offsets, per_sample_weights, pooling, counts)
    ranks = len(batch_sizes[0]) if batch_sizes else 0
    out: list[torch.Tensor] = [torch.zeros(0, dtype=torch.float64)]
    out_scales: list[torch.Tensor] = [torch.zeros(0, dtype=torch.float64)]
    for rank in range(ranks):
        for f in range(len(features)):
            first = sum(batch_sizes[f][:rank])
            for b in range(first, first + batch_sizes[f][rank]):
                out.append(results[f][b])
                out_scales.append(scales[f][b])
    return torch.cat(out), torch.cat(out_scales)


@dataclass(frozen=True)
class CheckedBounds:
    """Checked copies of indices and offsets, and what was wrong with the originals."""

    indices: torch.Tensor
    offsets: torch.Tensor
    invalid_indices: int
    invalid_offsets: int


def check_bounds(
    indices: torch.Tensor,
    offsets: torch.Tensor,
    rows: Sequence[int],
    bags_per_feature: Sequence[int],
) -> CheckedBounds:
    """Offsets clamped to [0, N], never falling, the last one N; then an index outside [-1, rows) becomes 0 (or -1)."""
    count = indices.numel()
    original = offsets.tolist()
    invalid_offsets, repaired, reached = 0, [], 0
    for i, value in enumerate(original):
        bad = value < 0 or value > count or (i > 0 and value < original[i - 1])
        bad = bad or (i == len(original) - 1 and value != count)
        invalid_offsets += bad
        reached = max(reached, min(max(value, 0), count))
        repaired.append(reached)
    if repaired and invalid_offsets:
        repaired[-1] = count
    checked = indices.tolist()
    invalid_indices, bag = 0, 0
    for f, bags in enumerate(bags_per_feature):
        for position in range(repaired[bag], repaired[bag + bags]):
            if checked[position] < -1 or checked[position] >= rows[f]:
                checked[position] = 0 if rows[f] > 0 else -1
                invalid_indices += 1
        bag += bags
    return CheckedBounds(
        torch.tensor(checked, dtype=indices.dtype),
        torch.tensor(repaired, dtype=offsets.dtype),
        invalid_indices,
        invalid_offsets,
    )


def within_tolerance(actual: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor) -> bool:
    """Whether every element of ``actual`` is finite and within its dtype's tolerance of the float64 ``expected``."""
    error = (actual.double().cpu() - expected).abs()
    return bool((error <= FORWARD_TOLERANCE[actual.dtype] * scale).all())


@dataclass(frozen=True)
class Optimizer:
    """A step of the optimizer and its numbers; names and defaults are those of ``backward_update``."""

    name: str
    learning_rate: float
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    weight_decay_mode: str = "none"

    def step(
        self, row: torch.Tensor, g: torch.Tensor, state: dict[str, torch.Tensor], count: int
    ) -> torch.Tensor:
        """The row after one step; ``state`` (of this row: momentum1, momentum2) is updated in place."""
        lr, eps = self.learning_rate, self.eps
        l2 = self.weight_decay if self.weight_decay_mode == "l2" else 0.0
        kept = 1 - lr * (self.weight_decay if self.weight_decay_mode == "decoupled" else 0.0)
        h = g + l2 * row
        match self.name:
            case "sgd":
                return kept * row - lr * h
            case "rowwise_adagrad":
                state["momentum1"] += (h**2).mean()
                mult = lr / (state["momentum1"].sqrt() + eps)
                return (kept - mult * l2) * row - mult * g
            case "adagrad":
                state["momentum1"] += h**2
                return kept * row - lr * h / (state["momentum1"].sqrt() + eps)
            case "adam":
                state["momentum1"].mul_(self.beta1).add_((1 - self.beta1) * h)
                state["momentum2"].mul_(self.beta2).add_((1 - self.beta2) * h**2)
                mean = state["momentum1"] / (1 - self.beta1**count)
                deviation = (state["momentum2"] / (1 - self.beta2**count)).sqrt()
                return kept * row - lr * mean / (deviation + eps)
        raise ValueError(self.name)


def bag_gradients(
    grad_output: torch.Tensor, dims: Sequence[int], batch_sizes: Sequence[Sequence[int]] | None
) -> list[list[torch.Tensor]]:
    """float64 gradient of every bag, as [feature][bag] of [dim]: the inverse of how forward lays its result out."""
    grad = grad_output.double()
    if batch_sizes is None:
        return [list(part.unbind(0)) for part in grad.split(list(dims), dim=1)]
    parts: list[list[torch.Tensor]] = [[] for _ in dims]
    at = 0
    for rank in range(len(batch_sizes[0])):
        for f, dim in enumerate(dims):
            for _ in range(batch_sizes[f][rank]):
                parts[f].append(grad[at : at + dim])
                at += dim
    return parts


def lookup_gradients(
    grad_output: torch.Tensor,
    features: Sequence[Feature],
    offsets: torch.Tensor,
    pooling: str,
    batch_sizes: Sequence[Sequence[int]] | None = None,
) -> list[tuple[int, int, torch.Tensor]]:
    """(feature, position, gradient of the lookup less its per-sample weight) of every position that a bag has."""
    dims = [feature.table.shape[1] for feature in features]
    gradients = bag_gradients(grad_output, dims, batch_sizes)
    ranges = bag_ranges(offsets, [len(bags) for bags in gradients])
    found = []
    for f, bags in enumerate(ranges):
        for b, (start, end) in enumerate(bags):
            for position in range(start, end):
                length = end - start if pooling == "mean" else 1
                found.append((f, position, gradients[f][b] / length))
    return found


def per_sample_weights_gradient(
    grad_output: torch.Tensor,
    features: Sequence[Feature],
    indices: torch.Tensor,
    offsets: torch.Tensor,
    pooling: str = "sum",
    batch_sizes: Sequence[Sequence[int]] | None = None,
) -> torch.Tensor:
    """float64 [N]: each row that is looked up times the gradient of its bag; 0 for a pruned row."""
    result = torch.zeros(indices.numel(), dtype=torch.float64)
    lookups = lookup_gradients(grad_output, features, offsets, pooling, batch_sizes)
    for f, position, gradient in lookups:
        if indices[position] != -1:
            result[position] = gradient @ features[f].table[indices[position]].double()
    return result


def row_gradients(
    grad_output: torch.Tensor,
    features: Sequence[Feature],
    feature_tables: Sequence[int],
    indices: torch.Tensor,
    offsets: torch.Tensor,
    per_sample_weights: torch.Tensor | None = None,
    pooling: str = "sum",
    batch_sizes: Sequence[Sequence[int]] | None = None,
) -> dict[tuple[int, int], torch.Tensor]:
    """(table, row) -> float64 gradient, of every row that is looked up, over all features of its table."""
    flat = indices.tolist()
    weights = None if per_sample_weights is None else per_sample_weights.float().double().tolist()
    rows: dict[tuple[int, int], torch.Tensor] = {}
    lookups = lookup_gradients(grad_output, features, offsets, pooling, batch_sizes)
    for f, position, gradient in lookups:
        if flat[position] == -1:
            continue
        key = (feature_tables[f], flat[position])
        scaled = gradient * (1.0 if weights is None else weights[position])
        rows[key] = rows[key] + scaled if key in rows else scaled
    return rows


def update(
    optimizer: Optimizer,
    tables: Sequence[torch.Tensor],
    states: dict[str, list[torch.Tensor]],
    gradients: dict[tuple[int, int], torch.Tensor],
    count: int = 1,
) -> None:
    """One step per row that has a gradient; float64 ``tables`` [rows, dim] and ``states`` change in place.

    ``states`` has momentum1 and momentum2 per table, [rows] or [rows, dim], as the optimizer needs; ``count`` is the
    number of this update, from 1 on.
    """
    for (table, row), gradient in gradients.items():
        state = {name: per_table[table][row] for name, per_table in states.items()}
        tables[table][row] = optimizer.step(tables[table][row], gradient, state, count)
