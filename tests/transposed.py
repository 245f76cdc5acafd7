"""What ``transpose_indices`` returns, taken apart, and the same in plain loops: the reference for every implementation.

From the description in ``docs/operators.md``; shares no code with the kernels, the launcher or the CPU operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

CHUNK = 128


@dataclass(frozen=True)
class Transposed:
    """The sections, without entries that are unspecified: as long as there are runs, pruned lookups counted as one.

    ``factors`` are as bits, and empty where every factor is 1.
    """

    run_rows: list[int]
    positions: list[int]
    run_starts: list[int]
    run_slots: list[int]
    run_begins: list[int]
    chunk_starts: list[int]
    chunk_runs: list[int]
    factors: list[int]

    def differences(self, other: Transposed) -> list[str]:
        """Names of the sections that are not equal."""
        names = [section.name for section in fields(self)]
        return [name for name in names if getattr(self, name) != getattr(other, name)]


def section_sizes(lookups: int, features: int, *, factored: bool) -> dict[str, int]:
    """int32 words of each section."""
    chunks = -(-lookups // CHUNK)
    return {
        "run_rows": 2 * lookups,
        "positions": lookups,
        "run_starts": lookups + 1,
        "run_slots": lookups,
        "run_begins": features + 1,
        "chunk_starts": chunks,
        "chunk_runs": chunks,
        "factors": lookups if factored else 0,
    }


def section_starts(sizes: dict[str, int]) -> tuple[dict[str, int], int]:
    """Where each section starts, at multiples of 4 words, and the words of all."""
    starts, end = {}, 0
    for name, size in sizes.items():
        starts[name] = -(-end // 4) * 4
        end = starts[name] + size
    return starts, end


def take_apart(words: torch.Tensor, lookups: int, features: int, *, factored: bool) -> Transposed:
    """What ``transpose_indices`` returned for so many lookups of so many features."""
    sizes = section_sizes(lookups, features, factored=factored)
    starts, numel = section_starts(sizes)
    assert words.dtype == torch.int32
    assert words.shape == (numel,)
    parts = {name: words[starts[name] : starts[name] + size] for name, size in sizes.items()}
    runs = int(parts["run_begins"][-1])
    if lookups:
        runs += int(parts["run_starts"][runs]) < lookups
    counts = {"run_rows": runs, "run_slots": runs, "run_starts": runs + 1}
    lists = {
        name: (part.view(torch.int64) if name == "run_rows" else part)[: counts.get(name)].tolist()
        for name, part in parts.items()
    }
    return Transposed(**lists)


def transpose(
    features: torch.Tensor,
    layout: Sequence[int],
    indices: torch.Tensor,
    offsets: torch.Tensor,
    per_sample_weights: torch.Tensor | None = None,
    pooling: str = "sum",
    bag_offsets: Sequence[int] | None = None,
    output_offsets: Sequence[int] | None = None,
) -> Transposed:
    """The lookups in the order of the rows that they hit; ``bag_offsets`` and ``output_offsets`` with VBE only."""
    slots, total_rows = features.tolist(), layout[4]
    ends = offsets.tolist()
    count = indices.numel()
    batch = (len(ends) - 1) // len(slots)
    bags = bag_offsets or [f * batch for f in range(len(slots) + 1)]
    factored = per_sample_weights is not None or pooling == "mean"
    keys, positions = [total_rows] * count, [0] * count
    factors = torch.zeros(count)
    for feature, _, _, _, _, column, _, first_row in slots:
        for bag in range(bags[feature], bags[feature + 1]):
            length = ends[bag + 1] - ends[bag] if pooling == "mean" else 1
            for i in range(ends[bag], ends[bag + 1]):
                if indices[i] >= 0:
                    keys[i] = first_row + int(indices[i])
                if output_offsets is None:
                    positions[i] = (bag - bags[feature]) * layout[2] + column
                else:
                    positions[i] = output_offsets[bag]
                factor = torch.tensor(1.0) if per_sample_weights is None else per_sample_weights[i]
                factors[i] = factor.float() / length

    order = sorted(range(count), key=keys.__getitem__)  # Stable.
    run_rows: list[int] = []
    run_starts: list[int] = []
    run_slots: list[int] = []
    for place, i in enumerate(order):
        if not run_rows or run_rows[-1] != keys[i]:
            run_rows.append(keys[i])
            run_starts.append(place)
            last = max((s for s, slot in enumerate(slots) if slot[7] <= keys[i]), default=0)
            run_slots.append(len(slots) if keys[i] == total_rows else last)
    run_starts.append(count)
    chunk_starts, chunk_runs = [-1] * -(-count // CHUNK), [-1] * -(-count // CHUNK)
    for run, row in enumerate(run_rows):
        length = run_starts[run + 1] - run_starts[run]
        for chunk in range(length // CHUNK if row < total_rows else 0):
            start = run_starts[run] + chunk * CHUNK
            chunk_starts[start // CHUNK], chunk_runs[start // CHUNK] = start, run
    return Transposed(
        run_rows=run_rows,
        positions=torch.tensor([positions[i] for i in order], dtype=torch.int64).int().tolist(),
        run_starts=run_starts,
        run_slots=run_slots,
        run_begins=[sum(slot < s for slot in run_slots) for s in range(len(slots) + 1)],
        chunk_starts=chunk_starts,
        chunk_runs=chunk_runs,
        factors=factors[order].view(torch.int32).tolist() if factored else [],
    )
