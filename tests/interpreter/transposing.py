"""Lookups, and the kernels that transpose them, one after the other: interpreted, the sort on the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests import oracle
from tests.interpreter.harness import Interpreter, KernelCall, constants_of
from tests.simt.run_finding import OLD, find_runs
from tests.simt.sorting import KEY_DTYPES, run_pass, sort_pass
from tests.transposed import Transposed, transpose

INDEX_DTYPES = {32: torch.int32, 64: torch.int64}


@dataclass(frozen=True)
class Lookups:
    """``lengths[f][b]`` lookups in bag b of feature f; ``tables[s]`` rows in the table of slot s, -1: of slot s - 1.

    ``slot_features[s]`` is the feature of slot s. Indices are drawn from the lowest ``distinct`` rows unless given.
    ``before`` and ``after`` lookups lie outside of all bags.
    """

    tables: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    slot_features: tuple[int, ...] = ()
    indices: tuple[int, ...] | None = None
    distinct: int = 1 << 60
    pruned: float = 0.2
    # Share of indices that are out of bounds.
    invalid: float = 0.0
    index_width: int = 64
    key_width: int = 32
    shape: str = "medium"
    size: str = "small"
    weighted: bool = False
    mean: bool = False
    vbe: bool = False
    before: int = 0
    after: int = 0
    # Rows before the first table: keys of more bits.
    first_row: int = 0
    seed: int = 0


class Problem:
    """The tensors of ``lookups``."""

    def __init__(self, lookups: Lookups) -> None:
        generator = torch.Generator().manual_seed(lookups.seed)
        slots = len(lookups.tables)
        self.width = 16 * slots
        slot_features = lookups.slot_features or tuple(range(slots))
        rows, next_row, table = 0, lookups.first_row, -1
        entries = []
        for slot, size in enumerate(lookups.tables):
            if size >= 0:
                rows, table = size, table + 1
                next_row += rows
            feature = slot_features[slot]
            entries.append([feature, 0, 16, 16, rows, 16 * feature, table, next_row - rows])
        if lookups.first_row:
            # The slot that has the rows before; no feature looks them up.
            entries[0][7] = 0
        self.total_rows = next_row
        self.features = torch.tensor(entries)
        rows_of = {entry[0]: entry[4] for entry in entries}
        lengths = [length for bags in lookups.lengths for length in bags]
        self.bag_counts = [len(bags) for bags in lookups.lengths]
        offsets = torch.tensor([lookups.before, *lengths]).cumsum(0)
        self.count = int(offsets[-1]) + lookups.after
        if lookups.indices is not None:
            indices = torch.tensor(lookups.indices, dtype=torch.int64)
        else:
            drawn = [torch.full((lookups.before,), 5)]
            for feature, bags in enumerate(lookups.lengths):
                most = min(rows_of[feature], lookups.distinct)
                # A table without rows has pruned lookups only.
                drawn.append(
                    torch.randint(0, max(most, 1), (sum(bags),), generator=generator)
                    - int(most == 0)
                )
            indices = torch.cat([*drawn, torch.full((lookups.after,), 5)])
            indices[torch.rand(indices.numel(), generator=generator) < lookups.pruned] = -1
            bad = torch.rand(indices.numel(), generator=generator) < lookups.invalid
            indices = torch.where(bad, self._strange(lookups, rows_of, generator), indices)
        dtype = INDEX_DTYPES[lookups.index_width]
        self.indices, self.offsets = indices.to(dtype), offsets.to(dtype)
        assert self.indices.numel() == self.count
        self.weights = torch.rand(self.count, generator=generator) + 0.5
        self.bag_offsets = torch.tensor([0, *self.bag_counts]).cumsum(0)
        # Beyond 2^31, as in a gradient of more elements.
        self.output_offsets = (
            torch.randperm(max(len(lengths), 1), generator=generator) * 16 + (1 << 31) - 32
        )

    @staticmethod
    def _strange(
        lookups: Lookups, rows_of: dict[int, int], generator: torch.Generator
    ) -> torch.Tensor:
        """An index for each lookup that is out of bounds."""
        inside = [
            torch.full((sum(bags),), rows_of[feature])
            for feature, bags in enumerate(lookups.lengths)
        ]
        rows = torch.cat([torch.zeros(lookups.before), *inside, torch.zeros(lookups.after)]).long()
        wide = 2**40 if lookups.index_width == 64 else 2**30
        choices = torch.stack([rows, rows + wide, torch.full_like(rows, -2), -wide - rows])
        drawn = torch.randint(0, 4, (rows.numel(),), generator=generator)
        return choices.gather(0, drawn[None])[0]

    def expected(self, lookups: Lookups) -> Transposed:
        """What the reference makes of them, invalid indices as the bounds check repairs them."""
        rows = {entry[0]: entry[4] for entry in self.features.tolist()}
        checked = oracle.check_bounds(
            self.indices,
            self.offsets,
            [rows[feature] for feature in range(len(rows))],
            self.bag_counts,
        )
        return transpose(
            self.features,
            [1, len(lookups.tables), self.width, 0, self.total_rows, 0],
            checked.indices if lookups.invalid else self.indices,
            self.offsets,
            self.weights if lookups.weighted else None,
            "mean" if lookups.mean else "sum",
            self.bag_offsets.tolist() if lookups.vbe else None,
            self.output_offsets.tolist() if lookups.vbe else None,
        )


def run_kernels(interpreter: Interpreter, lookups: Lookups) -> tuple[Transposed, Transposed]:
    """(what the kernels make of ``lookups``, what the reference does)."""
    problem = Problem(lookups)
    factored = lookups.weighted or lookups.mean
    keys, positions, factors = _linearise(interpreter, lookups, problem)
    variant = sort_pass(lookups.key_width, lookups.size)
    values = None if factored else positions
    shift = 0
    while shift == 0 or problem.total_rows >> shift:
        keys, values, _ = run_pass(variant, keys, values, shift)
        shift += variant.digit_bits
    assert values is not None
    return (
        find_runs(
            keys,
            values,
            problem.features,
            problem.total_rows,
            (positions, factors) if factored else None,
        ),
        problem.expected(lookups),
    )


def _linearise(
    interpreter: Interpreter, lookups: Lookups, problem: Problem
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    constants = constants_of(
        "linearise_lookups",
        key_width=lookups.key_width,
        index_width=lookups.index_width,
        shape=lookups.shape,
    )
    digits = 1 << constants["DIGIT_BITS"]
    factored = lookups.weighted or lookups.mean
    keys = torch.full((problem.count,), OLD, dtype=KEY_DTYPES[lookups.key_width])
    positions = torch.full((problem.count,), OLD, dtype=torch.int32)
    factors = torch.full((problem.count if factored else 1,), float(OLD))
    histogram = torch.zeros(digits, dtype=torch.int32)
    call = KernelCall(
        "linearise_lookups",
        (-(-max(problem.bag_counts) // constants["BAGS"]), len(lookups.tables)),
        (
            keys,
            positions,
            factors,
            histogram,
            problem.features,
            problem.indices,
            problem.offsets,
            problem.weights,
            problem.bag_offsets,
            problem.output_offsets,
            problem.count,
            problem.bag_counts[0],
            problem.width,
            problem.total_rows,
            int(lookups.weighted),
            int(lookups.mean),
            int(lookups.vbe),
            5,
        ),
        constants,
    )
    keys, positions, factors, histogram = interpreter.run(call)[0][:4]
    counts = torch.bincount(keys.long() & (digits - 1), minlength=digits)
    assert torch.equal(histogram.long(), counts)
    return keys, positions, factors
