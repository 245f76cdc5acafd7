"""The backward, planned, launched, recorded and replayed: its launches on plain memory lead to the right rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
import torch

from tests import oracle
from tests.launcher.replay import replay
from tests.launcher.support import Built, Child, Process, process
from tests.transposed import section_sizes, section_starts, take_apart, transpose

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Allowed error of a weight, times max(1, |weight|), and of a state.
WEIGHT_TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2}
SGD_TOLERANCE = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 5e-3}
STATE_TOLERANCE = 1e-4
STREAM = 0x77
NUMBERS: dict[str, Any] = {"learning_rate": 0.3, "eps": 1e-2, "weight_decay": 0.2}
ROWWISE_ADAGRAD = oracle.Optimizer("rowwise_adagrad", **NUMBERS)
ADAM = oracle.Optimizer("adam", **NUMBERS)
PADDING = -77.0


@pytest.fixture(scope="module")
def interpreting(built: Built) -> Iterator[Process]:
    with process(built, "9.0 NVIDIA H200;10.0 NVIDIA B200", TRITON_INTERPRET="1") as running:
        yield running


@dataclass(frozen=True)
class Problem:
    """Tables of ``dims`` and ``rows``; ``lengths[t][b]`` lookups in bag b of feature t.

    ``padded[t]``: rows of the table start at multiples of 16 bytes. VBE: two ranks share the bags of each feature, the
    first one taking a third. ``apart``: the lookups are transposed in a plan of its own.
    """

    dims: tuple[int, ...] = (16, 40)
    rows: tuple[int, ...] = (3, 50)
    padded: tuple[bool, ...] = (True, True)
    feature_tables: tuple[int, ...] = (0, 1)
    lengths: tuple[tuple[int, ...], ...] = ((130, 0, 300, 7), (20, 1, 0, 3))
    optimizer: oracle.Optimizer = ROWWISE_ADAGRAD
    weight_dtype: str = "fp16"
    gradient_dtype: str = "fp32"
    index_width: int = 64
    weighted: bool = False
    mean: bool = False
    vbe: bool = False
    pruned: float = 0.1
    clip: float = 0.0
    scale: float = 0.0
    found_inf: float | None = None
    weights_shift: int = 0
    apart: bool = False
    device: int = 0
    small_tables: str = "auto"
    fused_long_runs: str = "auto"

    @property
    def bags(self) -> list[int]:
        return [len(lengths) for lengths in self.lengths]

    @property
    def batch_sizes(self) -> list[list[int]] | None:
        return [[count // 3, count - count // 3] for count in self.bags] if self.vbe else None

    @property
    def factored(self) -> bool:
        return self.weighted or self.mean


def _group(problem: Problem, table: int, columns: list[int]) -> tuple[int, int]:
    """(bucket, aligned) of a table."""
    unit = 16 // DTYPES[problem.weight_dtype].itemsize
    dim = problem.dims[table]
    bucket = max(16, 1 << (dim - 1).bit_length())
    own = [
        column
        for column, owner in zip(columns, problem.feature_tables, strict=False)
        if owner == table
    ]
    if not problem.padded[table]:
        return bucket, 0
    return bucket, 1 if any(place % unit for place in (dim, columns[-1], *own)) else 2


class Inputs:
    """Everything of a problem in plain memory, the same in every process."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.generator = torch.Generator().manual_seed(1)
        dtype = DTYPES[problem.weight_dtype]
        unit = 16 // dtype.itemsize
        self.pitches = [
            -(-dim // unit) * unit if padded else dim
            for dim, padded in zip(problem.dims, problem.padded, strict=True)
        ]
        self.starts, size = [], 0
        for rows, pitch in zip(problem.rows, self.pitches, strict=True):
            self.starts.append(size)
            size += -(-rows * pitch // unit) * unit
        self.storage = torch.full((size + problem.weights_shift,), PADDING, dtype=dtype)
        self.weights = self.storage[problem.weights_shift :]
        for view in self.views(self.weights):
            view.copy_(torch.randn(view.shape, generator=self.generator))
        self._make_metadata()
        self._make_lookups()
        self._make_states()

    def views(self, of: torch.Tensor) -> list[torch.Tensor]:
        """Per table its part of the weights, or of a state: [rows, dim], or [rows] for a number per row."""
        problem = self.problem
        if of.numel() != self.weights.numel():
            firsts = [self.first_rows[table] for table in range(len(problem.rows))]
            return [
                of[first : first + rows] for first, rows in zip(firsts, problem.rows, strict=True)
            ]
        return [
            of.as_strided((rows, dim), (pitch, 1), of.storage_offset() + start)
            for rows, dim, pitch, start in zip(
                problem.rows, problem.dims, self.pitches, self.starts, strict=True
            )
        ]

    def _make_metadata(self) -> None:
        problem = self.problem
        columns = [0]
        for table in problem.feature_tables:
            columns.append(columns[-1] + problem.dims[table])
        groups = [_group(problem, table, columns) for table in range(len(problem.dims))]
        slots = sorted(
            range(len(problem.feature_tables)),
            key=lambda f: (groups[problem.feature_tables[f]], problem.feature_tables[f]),
        )
        self.first_rows: dict[int, int] = {}
        total = 0
        for table in dict.fromkeys(problem.feature_tables[f] for f in slots):
            self.first_rows[table] = total
            total += problem.rows[table]
        rows = []
        for f in slots:
            table = problem.feature_tables[f]
            place = [self.starts[table], self.pitches[table], problem.dims[table]]
            rows.append([f, *place, problem.rows[table], columns[f], table, self.first_rows[table]])
        self.features = torch.tensor(rows)
        self.layout = [1, len(rows), columns[-1], self.weights.numel(), total, max(problem.rows)]
        members = [groups[problem.feature_tables[f]] for f in slots]
        for group in dict.fromkeys(members):
            self.layout += [*group, members.count(group)]
        self.total_rows = total

    def _make_lookups(self) -> None:
        problem, generator = self.problem, self.generator
        dtype = torch.int32 if problem.index_width == 32 else torch.int64
        flat = [length for lengths in problem.lengths for length in lengths]
        self.offsets = torch.tensor([0, *flat]).cumsum(0).to(dtype)
        parts = [
            torch.randint(0, problem.rows[table], (sum(lengths),), generator=generator)
            for table, lengths in zip(problem.feature_tables, problem.lengths, strict=True)
        ]
        self.indices = torch.cat(parts).to(dtype)
        self.indices[torch.rand(self.indices.shape, generator=generator) < problem.pruned] = -1
        self.sample_weights = torch.rand(self.indices.shape, generator=generator) * 2 - 1
        self.bag_offsets = torch.tensor([0, *problem.bags]).cumsum(0)
        dims = [problem.dims[table] for table in problem.feature_tables]
        starts, element = {}, 0
        for rank in range(2):
            for t, dim in enumerate(dims):
                for sample in range((problem.batch_sizes or [[0, 0]] * len(dims))[t][rank]):
                    starts[t, rank, sample] = element
                    element += dim
        self.output_offsets = torch.tensor([starts[key] for key in sorted(starts)]).long()
        shape = (element,) if problem.vbe else (max(problem.bags), sum(dims))
        gradient = torch.randn(shape, generator=generator) * max(problem.scale, 1.0)
        self.gradient = gradient.to(DTYPES[problem.gradient_dtype])

    def _make_states(self) -> None:
        name = self.problem.optimizer.name
        self.momentum1 = self.momentum2 = self.step = torch.empty(0)
        if name == "sgd":
            return
        rows = (self.total_rows,) if name == "rowwise_adagrad" else self.weights.shape
        self.momentum1 = torch.rand(rows, generator=self.generator) + 0.1
        if name == "adam":
            self.momentum2 = torch.rand(rows, generator=self.generator) + 0.1
            self.step = torch.tensor([4])

    @cached_property
    def numbers(self) -> dict[str, torch.Tensor]:
        """Tensors of one number."""
        problem = self.problem
        given = {"learning_rate": torch.tensor([problem.optimizer.learning_rate])}
        if problem.scale:
            given["gradient_scale"] = torch.tensor([problem.scale])
        if problem.found_inf is not None:
            given["found_inf"] = torch.tensor([problem.found_inf])
        return given

    def changed(self) -> list[torch.Tensor]:
        """What an update may change."""
        return [self.storage, self.momentum1, self.momentum2, self.step]


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if tensor.numel() else 0


def _lookup_arguments(inputs: Inputs) -> dict[str, Any]:
    problem = inputs.problem
    return {
        "index_width": problem.index_width,
        "mean": problem.mean,
        "features": inputs.features.data_ptr(),
        "indices": inputs.indices.data_ptr(),
        "offsets": inputs.offsets.data_ptr(),
        "vbe_bag_offsets": inputs.bag_offsets.data_ptr() if problem.vbe else 0,
        "vbe_output_offsets": inputs.output_offsets.data_ptr() if problem.vbe else 0,
        "lookups": inputs.indices.numel(),
        "batch_size": max(problem.bags),
        "total_bags": sum(problem.bags),
    }


def _unwritten(bytes_: int) -> torch.Tensor:
    """int32 words that nothing was written to, at a multiple of 16 bytes."""
    return torch.full((bytes_ // 16 * 2 + 2,), 0x5A5A5A5A5A5A5A5A).view(torch.int32)


def _update(child: Child, problem: Problem) -> tuple[torch.Tensor, list[torch.Tensor], list[str]]:
    """(what was transposed, what may have changed, variants launched)."""
    inputs = Inputs(problem)
    launcher = child.launcher
    arch = launcher.device_arch(problem.device)
    lookups, layout = inputs.indices.numel(), inputs.layout
    features = len(problem.feature_tables)
    _, numel = section_starts(section_sizes(lookups, features, factored=problem.factored))
    words = _unwritten(4 * numel)
    given = {
        **_lookup_arguments(inputs),
        "arch": arch,
        "per_sample_weights": inputs.sample_weights.data_ptr() if problem.weighted else 0,
        "transposed": words.data_ptr(),
    }
    # One chunk per 64 bags; 128 columns and a word for each row of each.
    small_bytes = 64 * -(-sum(problem.bags) // 64) * 129 * 4
    partials = _unwritten(max(launcher.partials_bytes(lookups, layout), small_bytes))
    optimizer = problem.optimizer
    decay = {f"{optimizer.weight_decay_mode}_decay": optimizer.weight_decay}
    decay.pop("none_decay", None)
    update = launcher.BackwardUpdateRequest(
        arch=arch,
        multiprocessors=1,
        weight_dtype=problem.weight_dtype,
        gradient_dtype=problem.gradient_dtype,
        optimizer=optimizer.name,
        factored=problem.factored,
        vbe=problem.vbe,
        weights=inputs.weights.data_ptr(),
        gradient=inputs.gradient.data_ptr(),
        momentum1=_address(inputs.momentum1),
        momentum2=_address(inputs.momentum2),
        step=_address(inputs.step),
        features=inputs.features.data_ptr(),
        transposed=words.data_ptr(),
        partials=partials.data_ptr(),
        lookups=lookups,
        total_bags=sum(problem.bags),
        gradient_numel=inputs.gradient.numel(),
        eps=optimizer.eps,
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        clip=problem.clip,
        small_tables=problem.small_tables,
        fused_long_runs=problem.fused_long_runs,
        **{name: number.data_ptr() for name, number in inputs.numbers.items()},
        **decay,
    )
    counters = launcher.counters_bytes(update, layout)
    size = launcher.transpose_scratch_bytes(launcher.TransposeRequest(**given), layout)
    work = _unwritten(counters + size)
    update.counters = work.data_ptr()
    request = launcher.TransposeRequest(**given, scratch=work.data_ptr() + counters)
    plans = [launcher.plan_transpose(request, layout)] if problem.apart else []
    plans.append(launcher.plan_backward_update(update, layout, None if problem.apart else request))
    child.standin.take()
    for plan in plans:
        launcher.launch(plan, problem.device, STREAM)
    variants = replay(child.standin)
    return words[:numel].clone(), inputs.changed(), variants


def _expected_transposed(inputs: Inputs) -> Any:
    problem = inputs.problem
    return transpose(
        inputs.features,
        inputs.layout,
        inputs.indices,
        inputs.offsets,
        inputs.sample_weights if problem.weighted else None,
        "mean" if problem.mean else "sum",
        inputs.bag_offsets.tolist() if problem.vbe else None,
        inputs.output_offsets.tolist() if problem.vbe else None,
    )


def _row_gradients(inputs: Inputs) -> dict[tuple[int, int], torch.Tensor]:
    problem = inputs.problem
    gradient = inputs.gradient.double() / (problem.scale or 1.0)
    tables = inputs.views(inputs.weights)
    return oracle.row_gradients(
        gradient.clamp(-problem.clip, problem.clip) if problem.clip else gradient,
        [oracle.Feature(tables[table]) for table in problem.feature_tables],
        problem.feature_tables,
        inputs.indices,
        inputs.offsets,
        inputs.sample_weights if problem.weighted else None,
        "mean" if problem.mean else "sum",
        problem.batch_sizes,
    )


def _expect_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    error = (actual.double() - expected).abs() / expected.abs().clamp(min=1)
    assert float(error.max() if error.numel() else 0.0) <= tolerance


def _verify(problem: Problem, words: torch.Tensor, changed: list[torch.Tensor]) -> None:
    inputs = Inputs(problem)
    actual = take_apart(
        words,
        inputs.indices.numel(),
        len(problem.feature_tables),
        factored=problem.factored,
    )
    assert actual.differences(_expected_transposed(inputs)) == []
    _verify_update(problem, changed)


def _verify_update(problem: Problem, changed: list[torch.Tensor]) -> None:
    inputs = Inputs(problem)
    storage, momentum1, momentum2, step = changed
    name = problem.optimizer.name
    gradients = _row_gradients(inputs)
    tables = [view.double() for view in inputs.views(inputs.weights)]
    states = {
        key: [view.double() for view in inputs.views(before)]
        for key, before in (("momentum1", inputs.momentum1), ("momentum2", inputs.momentum2))
        if before.numel()
    }
    oracle.update(problem.optimizer, tables, states, gradients, 5)
    weights = storage[problem.weights_shift :]
    tolerances = SGD_TOLERANCE if name == "sgd" else WEIGHT_TOLERANCE
    for view, expected in zip(inputs.views(weights), tables, strict=True):
        _expect_close(view, expected, tolerances[problem.weight_dtype])
    for key, after in (("momentum1", momentum1), ("momentum2", momentum2)):
        for view, expected in zip(inputs.views(after), states.get(key, []), strict=False):
            _expect_close(view, expected, STATE_TOLERANCE)
    if name == "adam":
        assert step.tolist() == [5]
    # Whatever is no row that was looked up keeps its bits, gaps between rows included.
    for after, before in (
        (weights, inputs.weights),
        (momentum1, inputs.momentum1),
        (momentum2, inputs.momentum2),
    ):
        if not before.numel():
            continue
        for tensor in (after, before):
            for table, row in gradients:
                inputs.views(tensor)[table][row] = 0
        assert torch.equal(after, before)


def _labels(variants: list[str], kernel: str) -> list[str]:
    """Buckets, and alignment where there are variants for both, of a kernel's launches."""
    parts = [name.replace("__", "_").split("_") for name in variants if name.startswith(kernel)]
    buckets = [
        next(part for part in name if part[0] == "d" and part[1:].isdigit()) for name in parts
    ]
    kinds = [[part for part in name if part in {"aligned", "generic"}] for name in parts]
    return [" ".join([bucket, *kind]) for bucket, kind in zip(buckets, kinds, strict=True)]


SHORT = ((2, 0, 1, 3), (1, 1, 0, 4))


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad", "adam"])
@pytest.mark.parametrize("decay", ["l2", "decoupled"])
def test_optimizers(interpreting: Process, optimizer: str, decay: str) -> None:
    made = oracle.Optimizer(optimizer, weight_decay_mode=decay, **NUMBERS)
    problem = Problem(optimizer=made)
    words, changed, variants = interpreting.run(_update, problem)
    _verify(problem, words, changed)
    assert _labels(variants, "update_short_runs") == ["d64 aligned", "d16 aligned"]
    fused = optimizer in {"sgd", "rowwise_adagrad"}
    for kernel in ("sum_chunks", "update_long_runs"):
        assert _labels(variants, kernel) == (["d64 aligned"] * (not fused) + ["d16 aligned"])
    assert _labels(variants, "sum_and_update_long_runs") == ["d64"] * fused


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(Problem(weighted=True, mean=True), id="weighted-mean"),
        pytest.param(Problem(mean=True, apart=True, index_width=32), id="mean-apart-i32"),
        pytest.param(Problem(weighted=True, vbe=True), id="weighted-vbe"),
        pytest.param(Problem(vbe=True, apart=True, optimizer=ADAM), id="vbe-apart-adam"),
        pytest.param(Problem(lengths=SHORT), id="no-long-run"),
        pytest.param(Problem(lengths=SHORT, weighted=True, optimizer=ADAM), id="short-weighted"),
        pytest.param(
            Problem(
                dims=(16, 3, 24),
                rows=(4, 9, 300),
                padded=(True, False, True),
                feature_tables=(2, 0, 1, 0, 2),
                lengths=((9, 0), (150, 40), (3, 12), (140, 1), (0, 25)),
            ),
            id="shared-tables-and-mixed-alignment",
        ),
        pytest.param(
            Problem(weight_dtype="fp32", clip=0.5, scale=8.0, optimizer=ADAM),
            id="fp32-clipped-and-scaled",
        ),
        pytest.param(
            Problem(gradient_dtype="fp16", clip=0.7, scale=2.0, found_inf=0.0),
            id="fp16-gradient-clipped-and-scaled",
        ),
        pytest.param(
            Problem(weight_dtype="bf16", gradient_dtype="bf16", device=1), id="bf16-on-sm100"
        ),
        pytest.param(Problem(weights_shift=1), id="weights-address-off-by-one-element"),
        pytest.param(Problem(dims=(520, 130), lengths=SHORT, rows=(3, 5)), id="wide-rows"),
        pytest.param(Problem(rows=(1, 70_000), lengths=((700,), (1,)), pruned=0.0), id="one-row"),
        pytest.param(Problem(pruned=1.0, optimizer=ADAM), id="pruned-lookups-alone"),
        pytest.param(
            Problem(lengths=((300, 400, 350), (200, 500, 600)), rows=(2, 40)),
            id="more-than-one-tile",
        ),
    ],
)
def test_update(interpreting: Process, problem: Problem) -> None:
    words, changed, variants = interpreting.run(_update, problem)
    _verify(problem, words, changed)
    passes = max(1, math.ceil(Inputs(problem).total_rows.bit_length() / 8))
    assert sum(name.startswith("sort_pass") for name in variants) == passes
    generic = problem.weights_shift or 3 in problem.dims
    labels = _labels(variants, "update_short_runs")
    assert any("generic" in label for label in labels) == bool(generic or 130 in problem.dims)


SMALL = Problem((72,), (40,), (True,), (0,), ((30, 0, 9, 100) * 17,))


@pytest.mark.parametrize(
    ("problem", "kernels"),
    [
        pytest.param(SMALL, ["fp32_d128_i64", "fp16_d128_rowwise"], id="fp16"),
        pytest.param(
            replace(
                SMALL, optimizer=ADAM, mean=True, index_width=32, weight_dtype="bf16", device=1
            ),
            ["fp32_d128_i32", "bf16_d128_adam"],
            id="bf16-adam-mean-i32-on-sm100",
        ),
        pytest.param(
            replace(SMALL, gradient_dtype="fp16", clip=0.7),
            ["fp16_d128_i64", "fp16_d128_rowwise"],
            id="fp16-gradient",
        ),
        pytest.param(
            replace(SMALL, dims=(65,), weight_dtype="bf16", gradient_dtype="bf16", mean=True),
            ["bf16_d128_i64", "bf16_d128_rowwise"],
            id="bf16-gradient-of-odd-dim",
        ),
        pytest.param(
            replace(SMALL, dims=(65,), rows=(64,), padded=(False,), weights_shift=1),
            ["fp32_d128_i64", "fp16_d128_rowwise"],
            id="odd-rows-that-start-anywhere",
        ),
        pytest.param(
            replace(SMALL, dims=(64,), rows=(1,), clip=0.5, scale=8.0, found_inf=0.0),
            ["fp32_d64_i64", "fp16_d64_rowwise"],
            id="one-row-clipped-and-scaled",
        ),
        pytest.param(
            replace(SMALL, dims=(128,), rows=(64,), pruned=1.0),
            ["fp32_d128_i64", "fp16_d128_rowwise"],
            id="pruned-lookups-alone",
        ),
        pytest.param(
            replace(SMALL, lengths=((1, 2, 0),), small_tables="always"),
            ["fp32_d128_i64", "fp16_d128_rowwise"],
            id="short-bags-when-asked-for",
        ),
    ],
)
def test_update_of_a_small_table(
    interpreting: Process, problem: Problem, kernels: list[str]
) -> None:
    words, changed, variants = interpreting.run(_update, problem)
    _verify_update(problem, changed)
    summing, updating = kernels
    expected = [f"sum_small_table__{summing}", f"update_small_table__{updating}"]
    assert variants == ["advance_counters"] * (problem.optimizer == ADAM) + expected
    # Nothing was transposed.
    assert (words == 0x5A5A5A5A).all()


def test_found_inf_stops_the_update_of_a_small_table(interpreting: Process) -> None:
    problem = replace(SMALL, found_inf=1.0)
    _, changed, variants = interpreting.run(_update, problem)
    assert len(variants) == 2
    for after, before in zip(changed, Inputs(problem).changed(), strict=True):
        assert torch.equal(after, before)


@pytest.mark.parametrize("changes", [{"apart": True}, {"small_tables": "never"}])
def test_a_small_table_by_the_general_kernels(
    interpreting: Process, changes: dict[str, Any]
) -> None:
    problem = replace(SMALL, **changes)
    words, changed, variants = interpreting.run(_update, problem)
    _verify(problem, words, changed)
    assert not any("small_table" in name for name in variants)


def test_shared_table_has_its_runs_in_one_group(interpreting: Process) -> None:
    # The output columns of one feature are no whole vectors: all of its table are generic.
    problem = Problem(dims=(16, 4), feature_tables=(0, 1, 0), lengths=((5, 150), (2, 2), (9, 200)))
    words, changed, variants = interpreting.run(_update, problem)
    _verify(problem, words, changed)
    assert _labels(variants, "update_long_runs") == ["d16 generic"]


def test_found_inf_changes_nothing(interpreting: Process) -> None:
    problem = Problem(found_inf=1.0, optimizer=ADAM)
    _, changed, _ = interpreting.run(_update, problem)
    for after, before in zip(changed, Inputs(problem).changed(), strict=True):
        assert torch.equal(after, before)


@pytest.mark.parametrize("lengths", [((0, 0), (0, 0)), ((), ())])
@pytest.mark.parametrize("apart", [False, True])
def test_no_lookups(interpreting: Process, lengths: Any, apart: bool) -> None:
    problem = Problem(lengths=lengths, optimizer=ADAM, apart=apart)
    words, changed, variants = interpreting.run(_update, problem)
    *weights_and_states, step = changed
    assert variants == ["advance_counters"]
    assert step.tolist() == [5]
    for after, before in zip(weights_and_states, Inputs(problem).changed(), strict=False):
        assert torch.equal(after, before)
    if apart:
        assert words[0] == 0
        assert words[4:7].tolist() == [0, 0, 0]


def test_equal_bits_with_and_without_a_plan_of_its_own(interpreting: Process) -> None:
    together = Problem(weighted=True)
    _, first, _ = interpreting.run(_update, together)
    _, second, _ = interpreting.run(_update, replace(together, apart=True))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_equal_bits_with_long_runs_in_one_launch_and_in_two(
    interpreting: Process, apart: bool, weighted: bool
) -> None:
    fused = Problem(
        lengths=((300, 400, 350), (200, 500, 600)),
        apart=apart,
        weighted=weighted,
        fused_long_runs="always",
    )
    _, one, variants = interpreting.run(_update, fused)
    # The narrow group has no such kernel.
    assert _labels(variants, "sum_and_update_long_runs") == ["d64"]
    assert _labels(variants, "update_long_runs") == ["d16 aligned"]
    _, two, variants = interpreting.run(_update, replace(fused, fused_long_runs="never"))
    assert _labels(variants, "update_long_runs") == ["d64 aligned", "d16 aligned"]
    assert all(map(torch.equal, one, two))


# --- The gradient of the per-sample weights ------------------------------------------------------------


def _sample_weights(child: Child, problem: Problem) -> tuple[torch.Tensor, list[str]]:
    inputs = Inputs(problem)
    result = torch.full((inputs.indices.numel(),), torch.nan)
    arch = child.launcher.device_arch(problem.device)
    request = child.launcher.SampleWeightsGradientRequest(
        arch=arch,
        weight_dtype=problem.weight_dtype,
        gradient_dtype=problem.gradient_dtype,
        result=_address(result),
        gradient=inputs.gradient.data_ptr(),
        weights=inputs.weights.data_ptr(),
        **_lookup_arguments(inputs),
    )
    plan = child.launcher.plan_per_sample_weights_gradient(request, inputs.layout)
    child.standin.take()
    child.launcher.launch(plan, problem.device, STREAM)
    variants = replay(child.standin)
    return result, variants


@pytest.mark.parametrize(
    ("problem", "launches"),
    [
        pytest.param(Problem(), ["d64 aligned", "d16 aligned"], id="sum"),
        pytest.param(
            Problem(mean=True, index_width=32, gradient_dtype="fp16"),
            ["d64 aligned", "d16 aligned"],
            id="mean-i32-fp16",
        ),
        pytest.param(
            Problem(vbe=True, weight_dtype="fp32"), ["d64 aligned", "d16 aligned"], id="vbe-fp32"
        ),
        pytest.param(
            Problem(dims=(16, 3), padded=(True, False), vbe=True, mean=True),
            ["d16 generic", "d16 generic"],
            id="vbe-generic",
        ),
        pytest.param(
            Problem(feature_tables=(1, 0, 1), lengths=((2, 1), (0, 3), (4, 5)), weights_shift=1),
            ["d64 generic", "d16 generic"],
            id="shared-table-off-by-one-element",
        ),
        pytest.param(Problem(lengths=((), ())), [], id="no-bags"),
    ],
)
def test_gradient_of_sample_weights(
    interpreting: Process, problem: Problem, launches: list[str]
) -> None:
    actual, variants = interpreting.run(_sample_weights, problem)
    inputs = Inputs(problem)
    tables = inputs.views(inputs.weights)
    expected = oracle.per_sample_weights_gradient(
        inputs.gradient,
        [oracle.Feature(tables[table]) for table in problem.feature_tables],
        inputs.indices,
        inputs.offsets,
        "mean" if problem.mean else "sum",
        problem.batch_sizes,
    )
    _expect_close(actual, expected, 1e-4)
    assert _labels(variants, "per_sample_weights_gradient") == launches
