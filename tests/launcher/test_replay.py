"""Planned, launched, recorded, replayed: the launcher's own grids and arguments lead to the right numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from tests import oracle
from tests.launcher.replay import replay
from tests.launcher.support import Built, Child, Process, process

WEIGHT_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
INDEX_DTYPES = {32: torch.int32, 64: torch.int64}
STREAM = 0x77
# Beyond both ends of an output, which no launch may touch.
MARGIN = 32
UNTOUCHED = -77.0


@pytest.fixture(scope="module")
def interpreting(built: Built) -> Iterator[Process]:
    with process(built, "9.0 NVIDIA H200;10.0 NVIDIA B200", TRITON_INTERPRET="1") as running:
        yield running


@dataclass(frozen=True)
class Problem:
    """Tables of ``rows`` rows; ``lengths[t][b]`` lookups in bag b of feature t.

    ``padded[t]``: rows of the feature's table start at multiples of 16 bytes. VBE: two ranks share the bags of each
    feature, the first one taking a third.
    """

    dims: tuple[int, ...] = (16, 24)
    padded: tuple[bool, ...] = (True, True)
    rows: int = 7
    lengths: tuple[tuple[int, ...], ...] = ((50, 0, 25), (40, 29, 20))
    weight_dtype: str = "fp16"
    output_dtype: str = "fp32"
    index_width: int = 64
    weighted: bool = False
    mean: bool = False
    vbe: bool = False
    weights_shift: int = 0
    work_stealing: bool = False
    device: int = 0
    # "never", "auto" or "always": behind a bounds check, or with one.
    fused_checks: str = ""
    small_tables: str = "auto"
    # Every so many indices, from the first one on, is out of bounds.
    invalid_every: int = 0
    bad_offset: bool = False

    @property
    def bags(self) -> list[int]:
        return [len(lengths) for lengths in self.lengths]

    @property
    def batch_sizes(self) -> list[list[int]]:
        return [[count // 3, count - count // 3] for count in self.bags]


def _bucket(child: Child, dim: int) -> int:
    buckets: list[int] = child.launcher.buckets()
    return next(bucket for bucket in buckets if bucket >= dim)


@dataclass
class _Tables:
    weights: torch.Tensor
    tables: list[torch.Tensor]
    features: torch.Tensor
    layout: list[int]


def _make_tables(child: Child, problem: Problem, generator: torch.Generator) -> _Tables:
    """Weights, feature table and layout, features grouped by (bucket, aligned)."""
    dtype = WEIGHT_DTYPES[problem.weight_dtype]
    unit = 16 // dtype.itemsize
    pitches = [
        -(-dim // unit) * unit if padded else dim
        for dim, padded in zip(problem.dims, problem.padded, strict=True)
    ]
    # A table whose rows are not padded must not move the next one.
    sizes = [-(-pitch * problem.rows // unit) * unit for pitch in pitches]
    storage = torch.randn(sum(sizes) + problem.weights_shift, generator=generator).to(dtype)
    weights = storage[problem.weights_shift :]
    rows, tables, start, column = [], [], 0, 0
    for t, (dim, pitch) in enumerate(zip(problem.dims, pitches, strict=True)):
        rows.append([t, start, pitch, dim, problem.rows, column, t, t * problem.rows])
        tables.append(weights[start : start + pitch * problem.rows].view(-1, pitch)[:, :dim])
        start, column = start + sizes[t], column + dim
    groups: dict[tuple[int, int], list[list[int]]] = {}
    for row, pitch in zip(rows, pitches, strict=True):
        groups.setdefault((_bucket(child, row[3]), int(pitch % unit == 0)), []).append(row)
    total_rows = problem.rows * len(rows)
    layout = [1, len(rows), column, weights.numel(), total_rows, problem.rows]
    ordered = []
    for (bucket, aligned), members in sorted(groups.items()):
        layout += [bucket, aligned, len(members)]
        ordered += members
    return _Tables(weights, tables, torch.tensor(ordered), layout)


def _vbe_output_offsets(problem: Problem) -> torch.Tensor:
    """Start of each bag's output row: rank-major, then feature, then sample."""
    starts, element = {}, 0
    for rank in range(2):
        for t, dim in enumerate(problem.dims):
            for sample in range(problem.batch_sizes[t][rank]):
                starts[t, rank, sample] = element
                element += dim
    return torch.tensor([starts[key] for key in sorted(starts)], dtype=torch.int64)


def _solve(
    child: Child, problem: Problem
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[str]]:
    """(output, float64 oracle, error scale, variants launched)."""
    generator = torch.Generator().manual_seed(0)
    made = _make_tables(child, problem, generator)
    index_dtype = INDEX_DTYPES[problem.index_width]
    flat = [length for lengths in problem.lengths for length in lengths]
    offsets = torch.tensor([0, *flat]).cumsum(0).to(index_dtype)
    indices = torch.randint(-1, problem.rows, (sum(flat),), generator=generator).to(index_dtype)
    sample_weights = torch.rand(sum(flat), generator=generator) + 0.5
    if problem.invalid_every:
        spoiled = indices[:: problem.invalid_every]
        spoiled[::2], spoiled[1::2] = problem.rows, -7
    if problem.bad_offset:
        offsets[2] = -5
    given = indices.clone(), offsets.clone()
    bag_offsets = torch.tensor([0, *problem.bags]).cumsum(0)
    output_offsets = _vbe_output_offsets(problem)
    elements = sum(count * dim for count, dim in zip(problem.bags, problem.dims, strict=True))
    storage = torch.full(
        [elements + 2 * MARGIN], UNTOUCHED, dtype=WEIGHT_DTYPES[problem.output_dtype]
    )
    output = storage[MARGIN : MARGIN + elements]
    output.fill_(torch.nan)

    request = child.launcher.ForwardRequest(
        arch=child.launcher.device_arch(problem.device),
        weight_dtype=problem.weight_dtype,
        output_dtype=problem.output_dtype,
        index_width=problem.index_width,
        mean=problem.mean,
        output=output.data_ptr(),
        weights=made.weights.data_ptr(),
        features=made.features.data_ptr(),
        indices=indices.data_ptr(),
        offsets=offsets.data_ptr(),
        per_sample_weights=sample_weights.data_ptr() if problem.weighted else 0,
        vbe_bag_offsets=bag_offsets.data_ptr() if problem.vbe else 0,
        vbe_output_offsets=output_offsets.data_ptr() if problem.vbe else 0,
        lookups=indices.numel(),
        batch_size=max(problem.bags),
        total_bags=len(flat),
        work_stealing=problem.work_stealing,
        small_tables=problem.small_tables,
        fused_checks=problem.fused_checks or "auto",
    )
    repaired = oracle.check_bounds(
        indices, offsets, [problem.rows] * len(problem.dims), problem.bags
    )
    check = None
    count, report = torch.tensor([5]), torch.full([4], 99)
    checked_indices = torch.full_like(indices, problem.rows - 1)
    checked_offsets = torch.full_like(offsets, 77)
    if problem.fused_checks:
        check = child.launcher.CheckBoundsRequest(
            arch=request.arch,
            index_width=problem.index_width,
            indices=indices.data_ptr(),
            offsets=offsets.data_ptr(),
            features=made.features.data_ptr(),
            vbe_bag_offsets=request.vbe_bag_offsets,
            indices_out=checked_indices.data_ptr(),
            offsets_out=checked_offsets.data_ptr(),
            report=report.data_ptr(),
            invalid_count=count.data_ptr(),
            feature_count=len(problem.dims),
            lookups=indices.numel(),
            offsets_numel=offsets.numel(),
            batch_size=max(problem.bags),
        )
    plan = child.launcher.plan_forward(request, made.layout, check)
    child.standin.take()
    child.launcher.launch(plan, problem.device, STREAM)
    variants = replay(child.standin)
    if problem.fused_checks:
        assert torch.equal(checked_offsets, repaired.offsets)
        assert count == 5 + repaired.invalid_indices
        assert report[0] == repaired.invalid_offsets
        assert report[2] == (indices.numel() if problem.invalid_every else 0)
        assert torch.equal(indices, given[0])
        assert torch.equal(offsets, given[1])
        indices, offsets = repaired.indices, repaired.offsets

    assert (storage[:MARGIN] == UNTOUCHED).all()
    assert (storage[MARGIN + elements :] == UNTOUCHED).all()
    described = [oracle.Feature(table) for table in made.tables]
    pooling = "mean" if problem.mean else "sum"
    weighted = sample_weights if problem.weighted else None
    if problem.vbe:
        expected, scale = oracle.forward_vbe(
            described, indices, offsets, problem.batch_sizes, weighted, pooling
        )
    else:
        expected, scale = oracle.forward(described, indices, offsets, weighted, pooling)
    return output.view(expected.shape), expected, scale, variants


@dataclass(frozen=True)
class Far:
    """A table whose last row, or a table that as a whole, lies beyond 2^31 elements."""

    dim: int
    rows: int
    start: int = 0
    index_width: int = 32

    @property
    def last(self) -> int:
        """The first element of the last row."""
        return self.start + self.dim * (self.rows - 1)


def _look_up_far_row(child: Child, problem: Far) -> tuple[list[float], list[str]]:
    """(the last row plus itself, variants launched); of the weights only that row takes memory."""
    dtype = INDEX_DTYPES[problem.index_width]
    weights = torch.empty(problem.last + problem.dim, dtype=torch.float16)
    weights[problem.last :] = torch.arange(problem.dim)
    indices = torch.full([2], problem.rows - 1, dtype=dtype)
    offsets = torch.tensor([0, 2], dtype=dtype)
    features = torch.tensor([[0, problem.start, problem.dim, problem.dim, problem.rows, 0, 0, 0]])
    output = torch.full([problem.dim], torch.nan)
    aligned = int(problem.dim % 8 == 0)
    bucket = _bucket(child, problem.dim)
    size = weights.numel()
    request = child.launcher.ForwardRequest(
        arch="sm90",
        weight_dtype="fp16",
        index_width=problem.index_width,
        output=output.data_ptr(),
        weights=weights.data_ptr(),
        features=features.data_ptr(),
        indices=indices.data_ptr(),
        offsets=offsets.data_ptr(),
        lookups=2,
        batch_size=1,
        total_bags=1,
    )
    layout = [1, 1, problem.dim, size, problem.rows, problem.rows, bucket, aligned, 1]
    plan = child.launcher.plan_forward(request, layout)
    child.standin.take()
    child.launcher.launch(plan, 0, STREAM)
    variants = replay(child.standin)
    return output.tolist(), variants


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(Far(64, 2**31 // 64 + 2), id="aligned-i32"),
        pytest.param(Far(64, 2**31 // 64 + 2, index_width=64), id="aligned-i64"),
        pytest.param(Far(3, 2**31 // 3 + 2), id="generic-i32"),
        pytest.param(Far(3, 2**31 // 3 + 2, index_width=64), id="generic-i64"),
        pytest.param(Far(64, 2, start=2**31 + 64), id="a-table-that-starts-there"),
    ],
)
def test_fbgemm_3877_elements_beyond_2_to_the_31(interpreting: Process, problem: Far) -> None:
    assert problem.last >= 2**31 - 1
    output, (variant,) = interpreting.run(_look_up_far_row, problem)
    assert output == [2.0 * column for column in range(problem.dim)]
    assert f"_i{problem.index_width}_" in variant


MIXED = (3, 16, 8, 40, 64)
MIXED_PADDING = (False, True, True, True, False)
SHORT_BAGS = ((1, 0, 2, 1, 1), (0, 0, 3, 1, 0), (2, 1, 1, 0, 1), (1, 1, 1, 1, 1), (0, 2, 0, 1, 1))
LONG_BAGS = tuple(tuple(length + 28 for length in lengths) for lengths in SHORT_BAGS)


@pytest.mark.parametrize(
    ("problem", "shapes"),
    [
        pytest.param(Problem(), ["d16 aligned long", "d32 aligned long"], id="long-bags"),
        pytest.param(
            Problem(MIXED, MIXED_PADDING, lengths=LONG_BAGS),
            ["d16 generic long", "d16 aligned long", "d64 aligned long"],
            id="mixed-dims-and-alignment",
        ),
        pytest.param(
            Problem(MIXED, MIXED_PADDING, lengths=SHORT_BAGS, weight_dtype="bf16", index_width=32),
            ["d16 generic short", "d16 aligned short", "d64 aligned short"],
            id="mixed-short-bf16-i32",
        ),
        pytest.param(
            Problem(weighted=True, mean=True),
            ["d16 aligned long", "d32 aligned long"],
            id="weighted-mean",
        ),
        pytest.param(
            Problem(MIXED, MIXED_PADDING, lengths=SHORT_BAGS, weighted=True, output_dtype="fp16"),
            ["d16 generic short", "d16 aligned short", "d64 aligned short"],
            id="mixed-short-weighted-fp16",
        ),
        pytest.param(
            Problem(weight_dtype="fp32", output_dtype="bf16", device=1),
            ["d16 aligned long", "d32 aligned long"],
            id="fp32-to-bf16-on-sm100",
        ),
        pytest.param(
            Problem(weights_shift=1),
            ["d16 generic long", "d32 generic long"],
            id="weights-address-off-by-one-element",
        ),
        pytest.param(
            Problem(weights_shift=8),
            ["d16 aligned long", "d32 aligned long"],
            id="weights-address-off-by-16-bytes",
        ),
        pytest.param(
            Problem(
                dims=(16, 24, 16), padded=(True,) * 3, lengths=((3, 1), (9,), (0, 2, 4)), vbe=True
            ),
            ["d16 aligned short", "d32 aligned medium"],
            id="vbe",
        ),
        pytest.param(
            Problem(
                dims=(16, 5, 64),
                padded=(True, False, True),
                lengths=((40, 30), (29,), (35, 45, 31, 30)),
                vbe=True,
                weighted=True,
                mean=True,
                weight_dtype="fp32",
                index_width=32,
            ),
            ["d16 aligned long", "d16 generic long", "d64 aligned long"],
            id="vbe-mixed-weighted-mean-i32",
        ),
        pytest.param(
            Problem(dims=(130, 520), lengths=((2, 1), (1, 3))),
            ["d256 aligned short", "d1024 aligned long"],
            id="wide-rows",
        ),
        pytest.param(
            Problem(lengths=((0, 0), (0, 0)), mean=True),
            ["d16 aligned short", "d32 aligned short"],
            id="no-lookups",
        ),
    ],
)
def test_forward(interpreting: Process, problem: Problem, shapes: list[str]) -> None:
    actual, expected, scale, variants = interpreting.run(_solve, problem)
    assert oracle.within_tolerance(actual, expected, scale)
    launched = []
    for name in variants:
        _, bucket, _, weighted, alignment, shape, check = name.replace("__", "_").split("_")[1:]
        assert check == "trusting"
        assert weighted == ("weighted" if problem.weighted else "unweighted")
        launched.append(f"{bucket} {alignment} {shape}")
    assert sorted(launched) == sorted(shapes)


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        pytest.param(
            Problem((72,), (True,), 40, ((100, 70, 64, 300),)), "fp16_d128_e64_i64", id="auto"
        ),
        pytest.param(
            Problem((65,), (True,), 64, ((70,) * 20,), index_width=32, mean=True, device=1),
            "fp16_d128_e64_i32",
            id="odd-mean-i32-on-sm100",
        ),
        pytest.param(
            Problem((66,), (True,), 64, ((70,) * 20,), output_dtype="fp16"),
            "fp16_d128_e64_i64",
            id="fp16-output-of-an-even-dim",
        ),
        pytest.param(
            Problem((64,), (True,), 64, ((70,) * 20,), output_dtype="bf16"),
            "fp16_d64_e64_i64",
            id="bf16-output",
        ),
        pytest.param(
            Problem((64,), (True,), 64, ((64,) * 17,), weights_shift=8),
            "fp16_d64_e64_i64",
            id="weights-address-off-by-16-bytes",
        ),
    ],
)
def test_forward_of_a_small_table(interpreting: Process, problem: Problem, name: str) -> None:
    actual, expected, scale, variants = interpreting.run(_solve, problem)
    assert oracle.within_tolerance(actual, expected, scale)
    assert variants == [f"forward_small_table__{name}_trusting"]


CHECKS = ["check_offsets", "repair_offsets"]
SHORT = Problem((16, 24), (True, True), lengths=((2, 0, 3), (1, 2, 1)), invalid_every=4)


@pytest.mark.parametrize("index_width", [32, 64])
@pytest.mark.parametrize(
    ("problem", "fused"),
    [
        pytest.param(SHORT, True, id="short-bags"),
        pytest.param(replace(SHORT, invalid_every=0), True, id="nothing-invalid"),
        pytest.param(replace(SHORT, bad_offset=True), True, id="bad-offset"),
        pytest.param(
            replace(SHORT, dims=(16,), padded=(True,), lengths=((2, 3, 1),)), True, id="one"
        ),
        pytest.param(
            replace(SHORT, lengths=((2, 0, 3), (1, 2)), vbe=True, mean=True), True, id="vbe-mean"
        ),
        pytest.param(replace(SHORT, weight_dtype="fp32", device=1), True, id="fp32-on-sm100"),
        pytest.param(replace(SHORT, weighted=True), False, id="weighted"),
        pytest.param(replace(SHORT, padded=(True, False), dims=(16, 3)), False, id="generic"),
        pytest.param(replace(SHORT, dims=(16, 600)), False, id="wide"),
        pytest.param(Problem(invalid_every=3), False, id="long-bags"),
    ],
)
def test_checked_forward(
    interpreting: Process, problem: Problem, index_width: int, *, fused: bool
) -> None:
    """In one launch or behind another: the result has the same bits, and what is reported is the same."""
    problem = replace(problem, index_width=index_width)
    outputs = []
    for mode in ("auto", "never"):
        actual, expected, scale, variants = interpreting.run(
            _solve, replace(problem, fused_checks=mode)
        )
        assert oracle.within_tolerance(actual, expected, scale)
        outputs.append(actual)
        kernels = [name.partition("__")[0] for name in variants]
        is_fused = fused and mode == "auto"
        assert kernels[:2] == CHECKS
        assert ("check_indices" in kernels) == (not is_fused)
        assert all(
            name.endswith("_checked") == is_fused for name in variants if name[:9] == "forward__"
        )
    assert torch.equal(*outputs)


def test_long_bags_are_checked_in_the_lookup_when_asked_for(interpreting: Process) -> None:
    problem = Problem(invalid_every=3, fused_checks="always")
    actual, expected, scale, variants = interpreting.run(_solve, problem)
    assert oracle.within_tolerance(actual, expected, scale)
    assert [name.partition("__")[0] for name in variants] == [*CHECKS, "forward", "forward"]
    assert all(name.endswith("_short_checked") for name in variants[2:])


@pytest.mark.parametrize("index_width", [32, 64])
@pytest.mark.parametrize("every", [0, 5])
def test_checked_forward_of_a_small_table(
    interpreting: Process, every: int, index_width: int
) -> None:
    problem = Problem(
        (72,), (True,), 40, ((100, 70, 0, 300),), invalid_every=every, index_width=index_width
    )
    outputs = []
    for mode in ("auto", "never"):
        actual, expected, scale, variants = interpreting.run(
            _solve, replace(problem, fused_checks=mode)
        )
        assert oracle.within_tolerance(actual, expected, scale)
        outputs.append(actual)
        looked_up = f"forward_small_table__fp16_d128_e64_i{index_width}"
        expected_names = (
            [f"{looked_up}_checked"]
            if mode == "auto"
            else [f"check_indices__i{index_width}", f"{looked_up}_trusting"]
        )
        assert variants[2:] == expected_names
    assert torch.equal(*outputs)


@pytest.mark.parametrize(
    ("problem", "launched"),
    [
        pytest.param(
            Problem((64, 40), lengths=((2, 0, 1) * 30, (1, 4, 3) * 30), device=1),
            ["forward_work_stealing__fp16_d64_i64"],
            id="one-group",
        ),
        pytest.param(
            Problem(
                (100, 24, 130),
                (True, True, True),
                lengths=((2, 0, 1), (1, 4, 3), (1, 1, 1)),
                weight_dtype="bf16",
                output_dtype="fp16",
                index_width=32,
                mean=True,
                device=1,
            ),
            [
                "forward__bf16_d256_i32_unweighted_aligned_short_trusting",
                "forward_work_stealing__bf16_d128_i32",
                "forward_work_stealing__bf16_d32_i32",
            ],
            id="groups-bf16-i32-mean",
        ),
        pytest.param(
            Problem((8, 72), lengths=((1, 2) * 5, (3,)), output_dtype="bf16", vbe=True, device=1),
            ["forward_work_stealing__fp16_d128_i64", "forward_work_stealing__fp16_d16_i64"],
            id="vbe-bf16-output",
        ),
        pytest.param(
            Problem((64, 40), lengths=((2, 0, 1), (1, 4, 3))),
            ["forward__fp16_d64_i64_unweighted_aligned_short_trusting"],
            id="not-on-sm90",
        ),
    ],
)
def test_forward_by_blocks_that_take_over_others(
    interpreting: Process, problem: Problem, launched: list[str]
) -> None:
    stealing = replace(problem, work_stealing=True)
    actual, expected, scale, variants = interpreting.run(_solve, stealing)
    assert oracle.within_tolerance(actual, expected, scale)
    assert variants == launched


def test_no_bags_launch_nothing(interpreting: Process) -> None:
    actual, _, _, variants = interpreting.run(_solve, Problem(lengths=((), ())))
    assert actual.shape == (0, 40)
    assert variants == []


# --- Bounds check -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bounds:
    """Lookups to check; ``bags`` per feature, VBE when they differ."""

    indices: tuple[int, ...]
    offsets: tuple[int, ...]
    rows: tuple[int, ...] = (4, 0, 9)
    bags: tuple[int, ...] = (2, 2, 2)
    index_width: int = 64
    count: bool = True


def _check(
    child: Child, problem: Bounds
) -> tuple[torch.Tensor, torch.Tensor, list[int], int, list[str]]:
    """(checked indices, checked offsets, report, invalid_count, variants launched)."""
    dtype = INDEX_DTYPES[problem.index_width]
    indices = torch.tensor(problem.indices, dtype=dtype)
    offsets = torch.tensor(problem.offsets, dtype=dtype)
    indices_out, offsets_out = torch.full_like(indices, 77), torch.full_like(offsets, 77)
    # Grouping reorders features: only the first column says which is which.
    features = torch.tensor(
        [[t, 0, 8, 8, rows, 0, t, 0] for t, rows in enumerate(problem.rows)]
    ).flip(0)
    bag_offsets = torch.tensor([0, *problem.bags]).cumsum(0)
    report, count = torch.full([4], 99), torch.tensor([5])
    vbe = len(set(problem.bags)) > 1
    request = child.launcher.CheckBoundsRequest(
        arch="sm90",
        index_width=problem.index_width,
        indices=indices.data_ptr(),
        offsets=offsets.data_ptr(),
        features=features.data_ptr(),
        vbe_bag_offsets=bag_offsets.data_ptr() if vbe else 0,
        indices_out=indices_out.data_ptr(),
        offsets_out=offsets_out.data_ptr(),
        report=report.data_ptr(),
        invalid_count=count.data_ptr() if problem.count else 0,
        feature_count=len(problem.rows),
        lookups=indices.numel(),
        offsets_numel=offsets.numel(),
        batch_size=max(problem.bags),
    )
    plan = child.launcher.plan_check_bounds(request)
    child.standin.take()
    child.launcher.launch(plan, 0, STREAM)
    variants = replay(child.standin)
    # The caller's tensors are never written.
    assert indices.tolist() == list(problem.indices)
    assert offsets.tolist() == list(problem.offsets)
    return indices_out, offsets_out, report.tolist(), int(count), variants


GOOD = (3, -1, 0, -1, -1, 8, 2, 8)
GOOD_OFFSETS = (0, 2, 3, 3, 5, 6, 8)


BAD = (4, -2, 0, 0, -1, 9, 2, -7)


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(Bounds(GOOD, GOOD_OFFSETS), id="good"),
        pytest.param(Bounds(BAD, GOOD_OFFSETS), id="bad-indices"),
        pytest.param(
            Bounds(BAD, GOOD_OFFSETS, index_width=32, count=False), id="counted-in-the-report-i32"
        ),
        pytest.param(Bounds(GOOD, (-100, 2, 3, 3, 5, 6, 108)), id="bad-first-and-last-offset"),
        pytest.param(Bounds(GOOD, (0, 5, 3, 3, 5, 6, 7), index_width=32), id="falling-offsets-i32"),
        pytest.param(Bounds(BAD, (0, 1, 3, 3, 5, 6, 8), bags=(1, 2, 3)), id="vbe"),
        pytest.param(Bounds((), (0, 0, 0, 0, 0, 0, 0)), id="no-lookups"),
        pytest.param(Bounds((7,) * 8, GOOD_OFFSETS, rows=(7, 7, 7)), id="all-indices-bad"),
    ],
)
def test_check_bounds(interpreting: Process, problem: Bounds) -> None:
    indices, offsets, report, count, variants = interpreting.run(_check, problem)
    expected = oracle.check_bounds(
        torch.tensor(problem.indices, dtype=indices.dtype),
        torch.tensor(problem.offsets, dtype=offsets.dtype),
        problem.rows,
        problem.bags,
    )
    assert indices.tolist() == expected.indices.tolist()
    assert offsets.tolist() == expected.offsets.tolist()
    assert report[0] == expected.invalid_offsets
    assert (report[1] > 0) == (expected.invalid_offsets > 0)
    counted = count - 5 if problem.count else report[3]
    assert counted == expected.invalid_indices
    changed = [
        i for i, (a, b) in enumerate(zip(problem.indices, indices.tolist(), strict=True)) if a != b
    ]
    assert report[2] == (len(problem.indices) - changed[0] if changed else 0)
    assert len(variants) == (3 if problem.indices else 2)
