"""What is looked up: the cases, their inputs and the fewest bytes that a lookup of them can move.

A case has T features (each with a table of its own), B bags per feature of mean length L, tables of E rows and D
columns. Bag lengths are uniform in [0, 2L]. Rows are drawn uniformly or by a bounded Zipf law of exponent 1.05 whose
ranks are scattered over the table. Everything is seeded: two programs that draw case and seed get equal tensors.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import torch

ZIPF_EXPONENT = 1.05
# Coprime to every E here, so that `rank * prime % E` scatters the popular rows, differently in each table.
_SCATTER = (
    15485863,
    15485867,
    15485917,
    15485927,
    15485933,
    15485941,
    15485959,
    15485989,
)
# Primes, so that any number of implementations that take turns over the sets sees all of them.
_SET_COUNTS = (5, 7, 11, 13, 17)


@dataclass(frozen=True)
class Case:
    """One workload; ``dims`` is repeated over the features.

    ``goal`` is false for what is measured beside the goals: large uniform lookups whose share of the copy bandwidth
    is of interest, and the tiny smoke case.
    """

    name: str
    features: int
    batch: int
    mean_length: int
    dims: tuple[int, ...]
    rows: int
    distribution: Literal["uniform", "zipf"]
    goal: bool = True

    def feature_dims(self) -> list[int]:
        """D of every feature."""
        return [self.dims[t % len(self.dims)] for t in range(self.features)]

    def describe(self) -> str:
        """The case in one line, for tables."""
        dims = (
            str(self.dims[0]) if len(self.dims) == 1 else "{" + ", ".join(map(str, self.dims)) + "}"
        )
        return (
            f"T {self.features}, B {self.batch}, L {self.mean_length}, D {dims}, "
            f"E {self.rows:,} {self.distribution}"
        )

    def input_sets(self, least_bytes: int = 160_000_000) -> int:
        """How many input sets to rotate: together more than twice the L2 of any supported GPU."""
        per_set = 8 * self.features * self.batch * self.mean_length
        per_set += 4 * self.batch * sum(self.feature_dims())
        needed = -(-least_bytes // per_set)
        return next((count for count in _SET_COUNTS if count >= needed), _SET_COUNTS[-1])


CASES = {
    case.name: case
    for case in (
        Case("a", 10, 4096, 20, (128,), 1_000_000, "uniform"),
        Case("b", 10, 4096, 20, (128,), 1_000_000, "zipf"),
        Case("c", 1, 8192, 100, (128,), 64, "uniform"),
        Case("d", 100, 1024, 1, (64,), 100_000, "uniform"),
        Case("e", 20, 2048, 10, (16, 32, 64, 128, 256), 500_000, "uniform"),
        Case("f", 4, 16384, 50, (256,), 10_000_000, "zipf"),
        Case("large128", 10, 16384, 40, (128,), 8_000_000, "uniform", goal=False),
        Case("large256", 4, 16384, 50, (256,), 10_000_000, "uniform", goal=False),
        Case("smoke", 3, 16, 3, (16, 48), 100, "zipf", goal=False),
    )
}


def select_cases(names: str) -> list[Case]:
    """Cases by comma-separated names.

    Raises:
        ValueError: a name is unknown.
    """
    chosen = [name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in CASES]
    if unknown:
        message = f"no case named {', '.join(unknown)}; there are {', '.join(CASES)}"
        raise ValueError(message)
    return [CASES[name] for name in chosen]


@dataclass(frozen=True)
class Inputs:
    """``indices`` [N] and ``offsets`` [T*B + 1] of one integer dtype, ``per_sample_weights`` [N] fp32."""

    indices: torch.Tensor
    offsets: torch.Tensor
    per_sample_weights: torch.Tensor

    def with_width(self, dtype: torch.dtype) -> Inputs:
        """The same lookups with indices and offsets of another integer dtype."""
        return Inputs(self.indices.to(dtype), self.offsets.to(dtype), self.per_sample_weights)


def make_inputs(case: Case, seed: int, device: torch.device) -> Inputs:
    """Draw one int64 input set; equal seeds give equal tensors on one kind of device."""
    generator = torch.Generator(device=device).manual_seed(seed)
    bags = case.features * case.batch
    lengths = torch.randint(
        0, 2 * case.mean_length + 1, (bags,), generator=generator, device=device, dtype=torch.int64
    )
    offsets = torch.zeros(bags + 1, dtype=torch.int64, device=device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    count = int(offsets[-1])
    if case.distribution == "uniform":
        indices = torch.randint(
            0, case.rows, (count,), generator=generator, device=device, dtype=torch.int64
        )
    else:
        # The inverse of the distribution function of a Pareto law cut off at E.
        uniform = torch.rand((count,), generator=generator, device=device, dtype=torch.float64)
        power = 1.0 - ZIPF_EXPONENT
        rank = torch.pow(1.0 + uniform * ((case.rows + 1.0) ** power - 1.0), 1.0 / power)
        rank = (rank.floor().to(torch.int64) - 1).clamp(0, case.rows - 1)
        feature = torch.bucketize(
            torch.arange(count, device=device),
            offsets[1:][case.batch - 1 :: case.batch].contiguous(),
            right=True,
        )
        scatter = torch.tensor(
            [_SCATTER[t % len(_SCATTER)] for t in range(case.features)], device=device
        )
        indices = (rank * scatter[feature] + feature * 7919) % case.rows
    weights = torch.rand((count,), generator=generator, device=device, dtype=torch.float32) + 0.5
    return Inputs(indices, offsets, weights)


@dataclass(frozen=True)
class Volume:
    """What a set of lookups touches: ``lookups`` N, unique rows, and the elements of those unique rows."""

    lookups: float
    unique_rows: float
    unique_elements: float


def volume(case: Case, inputs: Inputs) -> Volume:
    """Count one input set."""
    ends = inputs.offsets[:: case.batch].tolist()
    rows = [
        int(torch.unique(inputs.indices[start:end]).numel())
        for start, end in itertools.pairwise(ends)
    ]
    elements = sum(count * dim for count, dim in zip(rows, case.feature_dims(), strict=True))
    return Volume(inputs.indices.numel(), sum(rows), elements)


def mean_volume(case: Case, sets: list[Inputs]) -> Volume:
    """The mean over input sets."""
    counts = [volume(case, inputs) for inputs in sets]
    return Volume(
        sum(v.lookups for v in counts) / len(counts),
        sum(v.unique_rows for v in counts) / len(counts),
        sum(v.unique_elements for v in counts) / len(counts),
    )


def forward_bytes(
    case: Case,
    touched: Volume,
    *,
    weighted: bool,
    weight_bytes: int,
    output_bytes: int,
    index_bytes: int,
) -> float:
    """The fewest bytes of a forward: each unique row, index, offset and per-sample weight read once, the output written once."""
    bags = case.features * case.batch
    return (
        touched.unique_elements * weight_bytes
        + touched.lookups * index_bytes
        + (bags + 1) * index_bytes
        + (4 * touched.lookups if weighted else 0)
        + case.batch * sum(case.feature_dims()) * output_bytes
    )


def backward_bytes(
    case: Case,
    touched: Volume,
    *,
    weighted: bool,
    sample_weights_gradient: bool,
    row_state: bool,
    weight_bytes: int,
    gradient_bytes: int,
    index_bytes: int,
) -> float:
    """The fewest bytes of a backward with its update.

    The gradient, indices, offsets and per-sample weights read once, each unique row and its state (4 bytes per row, if
    there is one) read and written, the gradient of the per-sample weights written.
    """
    bags = case.features * case.batch
    return (
        case.batch * sum(case.feature_dims()) * gradient_bytes
        + touched.lookups * index_bytes
        + (bags + 1) * index_bytes
        + (4 * touched.lookups if weighted else 0)
        + (4 * touched.lookups if sample_weights_gradient else 0)
        + 2 * touched.unique_elements * weight_bytes
        + (8 * touched.unique_rows if row_state else 0)
    )


RUN_LENGTHS = (4, 32, 256)
"""Where groups of run lengths end."""


def run_length_shares(case: Case, inputs: Inputs) -> list[float]:
    """The share of the lookups that hit rows of each group of run lengths: below 4, 4 to 31, 32 to 255, from 256 on."""
    ends = inputs.offsets[:: case.batch].tolist()
    totals = [0] * (len(RUN_LENGTHS) + 1)
    for start, end in itertools.pairwise(ends):
        lengths = torch.unique(inputs.indices[start:end], return_counts=True)[1]
        group = torch.bucketize(
            lengths, torch.tensor(RUN_LENGTHS, device=lengths.device), right=True
        )
        for number in range(len(totals)):
            totals[number] += int(lengths[group == number].sum())
    return [total / max(inputs.indices.numel(), 1) for total in totals]
