"""Updates of tables by the backward's kernels, interpreted, and what the float64 oracle says of them.

The sorted lookups and runs that the kernels read are built here, in plain torch, from the definitions: other kernels
make them on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

import torch

from tests import oracle
from tests.interpreter.harness import Interpreter, KernelCall, constants_of

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DTYPE_PAIRS = [
    ("fp32", "fp32"),
    ("fp16", "fp32"),
    ("fp16", "fp16"),
    ("bf16", "fp32"),
    ("bf16", "bf16"),
]
CHUNK = 128
GUARD = 64  # Elements before and after what may be written.
UNWRITTEN = -1234567  # In entries that hold nothing: whoever used one would be far outside.

SGD = oracle.Optimizer("sgd", 0.1)
ROWWISE_ADAGRAD = oracle.Optimizer("rowwise_adagrad", 0.1)
ADAGRAD = oracle.Optimizer("adagrad", 0.1)
ADAM = oracle.Optimizer("adam", 0.1)
OPTIMIZERS = [SGD, ROWWISE_ADAGRAD, ADAGRAD, ADAM]


@dataclass(frozen=True)
class Table:
    """A table of len(uses) rows: row r is looked up ``uses[r]`` times, by any of its ``features`` features."""

    dim: int
    uses: tuple[int, ...]
    bucket: int = 16
    aligned: bool = True
    features: int = 1

    @property
    def pitch(self) -> int:
        """Elements between rows: some padding, whole vectors of it if aligned."""
        return self.dim + (8 if self.aligned else 3)


@dataclass(frozen=True)
class Problem:
    """An update. Tables with equal bucket and alignment, one after another, are a group: a launch of each kernel."""

    tables: tuple[Table, ...]
    optimizer: oracle.Optimizer = ROWWISE_ADAGRAD
    weight_dtype: str = "fp32"
    gradient_dtype: str = "fp32"
    batch: int = 4
    weighted: bool = False
    mean: bool = False
    vbe: bool = False
    pruned: int = 0  # Lookups of row -1 per feature.
    gradient_value: float | None = None  # All elements of the gradient; random if None.
    gradient_scale: float | None = None
    clip: float = float("inf")
    found_inf: float | None = None
    rounding_seed: int | None = None  # Rows are rounded to the nearest number if None.
    steps_before: int = 3
    seed: int = 0

    @property
    def factored(self) -> bool:
        """Whether lookups have factors."""
        return self.weighted or self.mean


@dataclass
class Transposed:
    """The sorted lookups and their runs, as the kernels read them."""

    positions: torch.Tensor
    factors: torch.Tensor
    run_starts: torch.Tensor
    run_rows: torch.Tensor
    run_slots: torch.Tensor
    run_begins: torch.Tensor
    chunk_starts: torch.Tensor
    chunk_runs: torch.Tensor

    def shuffled(self, seed: int) -> Transposed:
        """The same runs in another order, and so in other tiles beside others; of the first group only."""
        count = int(self.run_begins[-1])
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
        starts = self.run_starts.tolist()
        lookups = [torch.arange(starts[r], starts[r + 1]) for r in order]
        flat = torch.cat([*lookups, torch.arange(starts[count], self.positions.numel())])
        lengths = [len(run) for run in lookups]
        run_starts = self.run_starts.clone()
        run_starts[: count + 1] = torch.tensor([0, *lengths]).cumsum(0)
        run_rows, run_slots = self.run_rows.clone(), self.run_slots.clone()
        run_rows[:count], run_slots[:count] = self.run_rows[order], self.run_slots[order]
        chunk_starts, chunk_runs = chunks_of(run_starts[: count + 1], self.chunk_starts.numel())
        return Transposed(
            self.positions[flat],
            self.factors[flat] if self.factors.numel() > 1 else self.factors,
            run_starts,
            run_rows,
            run_slots,
            self.run_begins,
            chunk_starts,
            chunk_runs,
        )


def chunks_of(run_starts: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(first lookup, run) of the chunk in each slot; -1 for none."""
    starts = torch.full([slots], -1, dtype=torch.int32)
    runs = torch.full([slots], -1, dtype=torch.int32)
    bounds = run_starts.tolist()
    for run, (start, stop) in enumerate(pairwise(bounds)):
        for first in range(start, stop - CHUNK + 1, CHUNK):
            starts[first // CHUNK] = first
            runs[first // CHUNK] = run
    return starts, runs


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of floating-point numbers, which tell NaNs and zeros apart."""
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)


@dataclass
class State:
    """What an update may change."""

    weights: torch.Tensor
    momentum1: torch.Tensor
    momentum2: torch.Tensor
    step: torch.Tensor
    partials: torch.Tensor

    def equals(self, other: State) -> bool:
        """Whether weights, momenta and step have equal bits."""
        return (
            torch.equal(bits(self.weights), bits(other.weights))
            and torch.equal(bits(self.momentum1), bits(other.momentum1))
            and torch.equal(bits(self.momentum2), bits(other.momentum2))
            and torch.equal(self.step, other.step)
        )


class Update:
    """A problem with its numbers drawn."""

    def __init__(self, problem: Problem) -> None:
        """Draw everything, always in the same order."""
        self.problem = problem
        self.generator = torch.Generator().manual_seed(problem.seed)
        self.slots = [t for t, table in enumerate(problem.tables) for _ in range(table.features)]
        self.dims = [problem.tables[t].dim for t in self.slots]
        self.width = sum(self.dims)
        self.table_offsets = [GUARD]
        for table in problem.tables:
            end = self.table_offsets[-1] + table.pitch * len(table.uses)
            self.table_offsets.append(-(-end // 8) * 8)
        self.first_rows = [0]
        for table in problem.tables:
            self.first_rows.append(self.first_rows[-1] + len(table.uses))
        self._draw_lookups()
        self._draw_gradient()
        self.before = self._draw_state()

    def _draw_lookups(self) -> None:
        problem, bags = self.problem, self.problem.batch
        # Features of a VBE problem have uneven numbers of bags, over two ranks.
        self.batch_sizes = [[bags // 3, bags - bags // 3 + s * problem.vbe] for s in self.slots]
        self.bags = [sum(sizes) for sizes in self.batch_sizes]
        indices, lengths = [], []
        for t, table in enumerate(problem.tables):
            rows = torch.repeat_interleave(torch.arange(len(table.uses)), torch.tensor(table.uses))
            rows = rows[torch.randperm(rows.numel(), generator=self.generator)]
            for part, slot in zip(
                rows.tensor_split(table.features),
                [s for s, of in enumerate(self.slots) if of == t],
                strict=True,
            ):
                found = torch.cat([part, torch.full([problem.pruned], -1)])
                found = found[torch.randperm(found.numel(), generator=self.generator)]
                indices.append(found)
                cuts = torch.randint(
                    0, found.numel() + 1, (self.bags[slot] - 1,), generator=self.generator
                )
                bounds = torch.cat([torch.tensor([0, found.numel()]), cuts]).sort().values
                lengths.append(bounds.diff())
        self.indices = torch.cat(indices)
        self.lengths = torch.cat(lengths)
        self.offsets = torch.cat([torch.tensor([0]), self.lengths.cumsum(0)])
        count = self.indices.numel()
        self.sample_weights = torch.rand(count, generator=self.generator) + 0.5

    def _draw_gradient(self) -> None:
        problem = self.problem
        shape = [problem.batch, self.width]
        if problem.vbe:
            shape = [sum(b * d for b, d in zip(self.bags, self.dims, strict=True))]
        gradient = torch.randn(shape, generator=self.generator)
        if problem.gradient_value is not None:
            gradient.fill_(problem.gradient_value)
        self.gradient = gradient.to(DTYPES[problem.gradient_dtype])

    def _draw_state(self) -> State:
        problem = self.problem
        elements = self.table_offsets[-1] + GUARD
        per_weight = problem.optimizer.name in {"adagrad", "adam"}
        state = elements if per_weight else self.first_rows[-1] + GUARD
        weights = torch.randn(elements, generator=self.generator)
        bucket = max(table.bucket for table in problem.tables)
        slots = -(-self.indices.numel() // CHUNK)
        return State(
            weights.to(DTYPES[problem.weight_dtype]),
            torch.rand(state, generator=self.generator),
            torch.rand(state, generator=self.generator),
            torch.tensor([problem.steps_before]),
            torch.full([slots + 1, bucket], torch.nan),
        )

    @cached_property
    def features(self) -> torch.Tensor:
        """The feature table, whose rows are in the order of the slots."""
        entries, column = [], 0
        for slot, t in enumerate(self.slots):
            table = self.problem.tables[t]
            entry = [slot, self.table_offsets[t], table.pitch, table.dim, len(table.uses), column]
            entries.append([*entry, t, self.first_rows[t]])
            column += table.dim
        return torch.tensor(entries)

    def bag_positions(self) -> torch.Tensor:
        """First element of each bag in the gradient."""
        starts, columns = {}, torch.tensor([0, *self.dims]).cumsum(0).tolist()
        if self.problem.vbe:
            element = 0
            for rank in range(2):
                for slot, dim in enumerate(self.dims):
                    first = self.batch_sizes[slot][0] if rank else 0
                    for sample in range(self.batch_sizes[slot][rank]):
                        starts[slot, first + sample] = element
                        element += dim
        else:
            for slot, bags in enumerate(self.bags):
                starts |= {(slot, bag): bag * self.width + columns[slot] for bag in range(bags)}
        return torch.tensor([starts[key] for key in sorted(starts)])

    def transposed(self) -> Transposed:
        """Sorted lookups and runs, by the definitions."""
        problem, count = self.problem, self.indices.numel()
        bag = torch.repeat_interleave(torch.arange(self.lengths.numel()), self.lengths)
        slot = torch.repeat_interleave(
            torch.arange(len(self.slots)),
            torch.stack([part.sum() for part in self.lengths.split(self.bags)]),
        )
        total_rows = self.first_rows[-1]
        key = torch.where(self.indices >= 0, self.features[slot, 7] + self.indices, total_rows)
        order = torch.sort(key, stable=True).indices
        factor = self.sample_weights if problem.weighted else torch.ones(count)
        if problem.mean:
            factor = factor / self.lengths[bag]
        rows, lengths = torch.unique_consecutive(key[order], return_counts=True)
        used = int((rows < total_rows).sum())
        run_starts = torch.full([count + 1], UNWRITTEN, dtype=torch.int32)
        run_rows = torch.full([count], UNWRITTEN)
        run_slots = torch.full([count], UNWRITTEN, dtype=torch.int32)
        run_starts[: rows.numel() + 1] = torch.cat([torch.tensor([0]), lengths.cumsum(0)])
        run_rows[: rows.numel()] = rows
        first_rows = torch.cat([self.features[:, 7], torch.tensor([total_rows])])
        run_slots[: rows.numel()] = torch.searchsorted(first_rows, rows, right=True).int() - 1
        begins = torch.searchsorted(rows[:used], first_rows).int()
        chunk_starts, chunk_runs = chunks_of(run_starts[: used + 1], -(-count // CHUNK))
        return Transposed(
            self.bag_positions()[bag][order].int(),
            factor[order] if problem.factored else torch.zeros(1),
            run_starts,
            run_rows,
            run_slots,
            begins,
            chunk_starts,
            chunk_runs,
        )

    def run(
        self,
        interpreter: Interpreter,
        transposed: Transposed | None = None,
        programs: int = 2,
        overlap: int = 0,
    ) -> State:
        """Interpret the launches of the update."""
        calls = self.calls(transposed or self.transposed(), programs, overlap)
        # The last launch, an update of long runs, has all state among its tensors.
        weights, partials, momentum1, momentum2, _, step, *_ = interpreter.run(*calls)[-1]
        return State(weights, momentum1, momentum2, step, partials)

    def run_fused(
        self,
        interpreter: Interpreter,
        transposed: Transposed | None = None,
        programs: int = 2,
        overlap: int = 0,
    ) -> tuple[State, torch.Tensor]:
        """The same with fused long runs; and the counters, with one more than there are chunk slots."""
        calls = self.calls(transposed or self.transposed(), programs, overlap, fused=True)
        # An update of short runs has all state but the partial sums.
        weights, _, momentum1, momentum2, _, step, *_ = (results := interpreter.run(*calls))[-1]
        fused = [call.kernel for call in calls].index("sum_and_update_long_runs")
        _, partials, counters, *_ = results[fused]
        return State(weights, momentum1, momentum2, step, partials), counters

    def calls(
        self, inputs: Transposed, programs: int, overlap: int, *, fused: bool = False
    ) -> list[KernelCall]:
        """The launches, on a copy of the state."""
        problem, optimizer = self.problem, self.problem.optimizer
        state = State(*(value.clone() for value in vars(self.before).values()))
        decay = {optimizer.weight_decay_mode: optimizer.weight_decay}
        scale = torch.tensor([problem.gradient_scale or torch.nan])
        found = torch.tensor([torch.nan if problem.found_inf is None else problem.found_inf])
        scaled, checked = problem.gradient_scale is not None, problem.found_inf is not None
        rate = torch.tensor([optimizer.learning_rate])
        betas = (optimizer.beta1, optimizer.beta2)
        decays = (decay.get("l2", 0.0), decay.get("decoupled", 0.0))
        adagrad = int(optimizer.name == "rowwise_adagrad")
        formula = optimizer.name if optimizer.name in {"adagrad", "adam"} else "rowwise"
        chunk_slots, stride = state.partials.shape[0] - 1, state.partials.shape[1]
        stochastic = int(problem.rounding_seed is not None)
        seed = torch.tensor([problem.rounding_seed or 0])
        counters_call = KernelCall(
            "advance_counters",
            (1, 1),
            (state.step, seed, found, int(formula == "adam"), stochastic, int(checked), overlap),
            {},
        )
        counters = torch.zeros(chunk_slots + 1, dtype=torch.int32)
        sums: list[KernelCall] = []
        updates: list[KernelCall] = []
        for first, count, table in self.groups():
            axes: dict[str, Any] = {"bucket": table.bucket, "aligned": table.aligned}
            begins = inputs.run_begins[first:].clone()
            runs = (inputs.run_starts, inputs.run_rows, inputs.run_slots, begins)
            chunks = (inputs.chunk_starts, inputs.chunk_runs)
            moments = (state.momentum1, state.momentum2, rate, state.step, scale, found, seed)
            axes_of_lookups: dict[str, Any] = {
                "gradient_dtype": problem.gradient_dtype,
                "factored": problem.factored,
            }
            if fused:
                call = KernelCall(
                    "sum_and_update_long_runs",
                    (programs, 1),
                    (
                        *(state.weights, state.partials, counters, self.gradient),
                        *(state.momentum1, rate, scale, found, seed, self.features),
                        *(inputs.positions, inputs.factors, *runs, *chunks, count, chunk_slots),
                        *(stride, optimizer.eps, *decays, problem.clip, adagrad, int(scaled)),
                        *(int(checked), stochastic, overlap),
                    ),
                    constants_of(
                        "sum_and_update_long_runs",
                        weight_dtype=problem.weight_dtype,
                        bucket=table.bucket,
                        **axes_of_lookups,
                    ),
                )
            else:
                call = KernelCall(
                    "sum_chunks",
                    (programs, 1),
                    (
                        *(state.partials, self.gradient, scale, self.features),
                        *(inputs.positions, inputs.factors, inputs.run_starts, inputs.run_slots),
                        *(begins, *chunks, count, chunk_slots, stride),
                        *(problem.clip, int(scaled), overlap),
                    ),
                    constants_of("sum_chunks", **axes_of_lookups, **axes),
                )
            sums.append(call)
            axes |= {"weight_dtype": problem.weight_dtype, "optimizer": formula}
            updates.append(
                KernelCall(
                    "update_short_runs",
                    (programs, 1),
                    (
                        *(state.weights, self.gradient, *moments, self.features),
                        *(inputs.positions, inputs.factors, *runs, count, optimizer.eps),
                        *(*betas, *decays, problem.clip, adagrad),
                        *(int(scaled), int(checked), stochastic, overlap),
                    ),
                    constants_of("update_short_runs", **axes_of_lookups, **axes),
                )
            )
            if fused:
                continue
            updates.append(
                KernelCall(
                    "update_long_runs",
                    (programs, 1),
                    (
                        *(state.weights, state.partials, state.momentum1, state.momentum2),
                        *(rate, state.step, found, seed, self.features),
                        *(*runs, *chunks, count, chunk_slots, stride, optimizer.eps),
                        *(*betas, *decays, adagrad, int(checked), stochastic, overlap),
                    ),
                    constants_of("update_long_runs", **axes),
                )
            )
        counts = formula == "adam" or stochastic
        return [*([counters_call] if counts else []), *sums, *updates]

    def groups(self) -> list[tuple[int, int, Table]]:
        """(first slot, slots, one of its tables) of each launch."""
        found, first = [], 0
        tables = [self.problem.tables[t] for t in self.slots]
        for _, members in groupby(tables, key=lambda table: (table.bucket, table.aligned)):
            group = list(members)
            found.append((first, len(group), group[0]))
            first += len(group)
        return found

    def expected(self) -> tuple[State, dict[str, torch.Tensor]]:
        """(float64 state after the update, where each of its tensors may change)."""
        problem, optimizer = self.problem, self.problem.optimizer
        gradient = self.gradient.double() / (problem.gradient_scale or 1.0)
        gradient = gradient.clamp(-problem.clip, problem.clip)
        after = State(*(value.double().clone() for value in vars(self.before).values()))
        after.step = self.before.step.clone()
        changed = {name: torch.zeros(v.shape, dtype=torch.bool) for name, v in vars(after).items()}
        if problem.found_inf:
            return after, changed
        per_weight = optimizer.name in {"adagrad", "adam"}
        names = {"sgd": [], "adam": ["momentum1", "momentum2"]}.get(optimizer.name, ["momentum1"])
        tables: list[torch.Tensor] = []
        states: dict[str, list[torch.Tensor]] = {name: [] for name in names}
        for t, table in enumerate(problem.tables):
            rows = slice(self.first_rows[t], self.first_rows[t + 1])
            tables.append(self._of_table(after.weights, t))
            used = torch.tensor(table.uses) > 0
            self._of_table(changed["weights"], t)[used] = True
            for name in names:
                values, marks = getattr(after, name), changed[name]
                if per_weight:
                    states[name].append(self._of_table(values, t))
                    self._of_table(marks, t)[used] = True
                else:
                    states[name].append(values[rows])
                    marks[rows][used] = True
        gradients = oracle.row_gradients(
            gradient,
            [oracle.Feature(tables[t]) for t in self.slots],
            self.slots,
            self.indices,
            self.offsets,
            self.sample_weights if problem.weighted else None,
            "mean" if problem.mean else "sum",
            self.batch_sizes if problem.vbe else None,
        )
        oracle.update(optimizer, tables, states, gradients, problem.steps_before + 1)
        if optimizer.name == "adam":
            after.step += 1
        return after, changed

    def _of_table(self, values: torch.Tensor, t: int) -> torch.Tensor:
        """[rows, dim], a view of what belongs to a table."""
        table = self.problem.tables[t]
        start, rows = self.table_offsets[t], len(table.uses)
        return values[start : start + table.pitch * rows].view(rows, table.pitch)[:, : table.dim]

    def check(self, after: State) -> None:
        """Assert that ``after`` is what the oracle says where something may change, and has its bits elsewhere."""
        expected, changed = self.expected()
        half = self.problem.weight_dtype != "fp32"
        tolerance = 1e-2 if half else 1e-5 if self.problem.optimizer.name == "sgd" else 1e-4
        for name, bound in (("weights", tolerance), ("momentum1", 1e-4), ("momentum2", 1e-4)):
            before, actual = getattr(self.before, name), getattr(after, name)
            marks, wanted = changed[name], getattr(expected, name)
            assert torch.equal(bits(before)[~marks], bits(actual)[~marks]), f"{name} outside"
            assert_close(actual[marks], wanted[marks], bound, name)
        assert torch.equal(after.step, expected.step)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float, name: str) -> None:
    """Assert an error of at most tolerance * max(1, |expected|), and NaN where NaN is expected."""
    error = (actual.double() - expected).abs() / expected.abs().clamp(min=1.0)
    right = (error <= tolerance) | (actual.isnan() & expected.isnan()) | (actual == expected)
    assert right.all(), f"{name}: {error[~right].max():.3g} > {tolerance}"


def solve(interpreter: Interpreter, problem: Problem, programs: int = 2) -> tuple[Update, State]:
    """Draw a problem, interpret its launches, and check the result."""
    update = Update(problem)
    after = update.run(interpreter, programs=programs)
    update.check(after)
    return update, after
