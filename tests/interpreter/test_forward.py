"""The forward kernel in Triton's interpreter against the float64 oracle, on every axis value and run-time choice."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import oracle
from tests.interpreter.harness import Interpreter, KernelCall, constants_of

WEIGHT_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
OUTPUT_DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = ["long", "medium", "short"]
BUCKETS = [16, 32, 64, 128, 256, 512, 1024, 2048]


@dataclass(frozen=True)
class Problem:
    """Tables of ``rows`` rows; ``lengths[t][b]`` lookups in bag b of feature t."""

    weight_dtype: str = "fp16"
    bucket: int = 16
    dims: tuple[int, ...] = (16, 8)
    rows: int = 7
    lengths: tuple[tuple[int, ...], ...] = ((3, 0, 5), (1, 9, 2))
    index_width: int = 64
    weighted: bool = False
    aligned: bool = True
    shape: str = "long"
    output_dtype: torch.dtype = torch.float32
    mean: bool = False
    vbe: bool = False
    seed: int = 0
    pruned: float = 0.2
    checked: bool = False
    invalid: float = 0.0


def solve(
    interpreter: Interpreter, problem: Problem
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(interpreted output, float64 oracle, error scale)."""
    return run_forward(interpreter, problem)[:3]


def run_forward(
    interpreter: Interpreter, problem: Problem
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[int], list[int]]:
    """(interpreted output, float64 oracle, error scale, [count, report], what the latter should be)."""
    generator = torch.Generator().manual_seed(problem.seed)
    dtype, index_dtype = WEIGHT_DTYPES[problem.weight_dtype], torch.int64
    if problem.index_width == 32:
        index_dtype = torch.int32
    pitch = [-(-dim // 8) * 8 if problem.aligned else dim for dim in problem.dims]
    weights = torch.randn(sum(p * problem.rows for p in pitch), generator=generator).to(dtype)
    features, tables, offset, column = [], [], 0, 0
    for t, dim in enumerate(problem.dims):
        features.append([t, offset, pitch[t], dim, problem.rows, column, t, t * problem.rows])
        tables.append(
            weights[offset : offset + pitch[t] * problem.rows].view(problem.rows, pitch[t])[:, :dim]
        )
        offset, column = offset + pitch[t] * problem.rows, column + dim
    flat = [length for bags in problem.lengths for length in bags]
    offsets = torch.tensor([0, *flat]).cumsum(0).to(index_dtype)
    count = sum(flat)
    rows = max(problem.rows, 1)
    indices = torch.randint(0, rows, (count,), generator=generator).to(index_dtype)
    indices[torch.rand(count, generator=generator) < problem.pruned] = -1
    sample_weights = torch.rand(count, generator=generator) + 0.5
    bad = torch.rand(count, generator=generator) < problem.invalid
    strange = torch.tensor([problem.rows, -2, 2**31 - 1, -(2**31)])
    if problem.index_width == 64:
        strange = torch.tensor([problem.rows, -2, 2**32, 2**63 - 1, -(2**63), 2**32 - 1])
    drawn = strange[torch.randint(0, len(strange), (count,), generator=generator)]
    indices = torch.where(bad, drawn.to(index_dtype), indices)
    constants = constants_of(
        "forward",
        weight_dtype=problem.weight_dtype,
        bucket=problem.bucket,
        index_width=problem.index_width,
        weighted=problem.weighted,
        aligned=problem.aligned,
        shape=problem.shape,
        checked=problem.checked,
    )
    bags = [len(b) for b in problem.lengths]
    if problem.vbe:
        # Ranks of uneven batch sizes, the last one taking what is left.
        batch_sizes = [[b // 3, b - b // 3] for b in bags]
        output_offsets = vbe_output_offsets(batch_sizes, problem.dims)
        output = torch.full(
            [sum(b * d for b, d in zip(bags, problem.dims, strict=True))], torch.nan
        )
    else:
        output_offsets = torch.zeros(1, dtype=torch.int64)
        output = torch.full([bags[0], column], torch.nan)
    output = output.to(problem.output_dtype)
    bag_offsets = torch.tensor([0, *bags]).cumsum(0)
    call = KernelCall(
        "forward",
        (-(-max(bags) // constants["BAGS"]), len(problem.dims)),
        (
            output,
            weights,
            torch.tensor(features),
            indices,
            offsets,
            sample_weights,
            bag_offsets,
            output_offsets,
            bags[0],
            column,
            OUTPUT_DTYPES.index(problem.output_dtype),
            int(problem.mean),
            int(problem.vbe),
            problem.seed % 4,
            torch.tensor([3]),
            torch.zeros(4, dtype=torch.int64),
            count,
        ),
        constants,
    )
    actual, *_, invalid_count, report = interpreter.run(call)[0]
    repaired = oracle.check_bounds(indices, offsets, [problem.rows] * len(bags), bags)
    indices = repaired.indices
    first = int(bad.int().argmax()) if bad.any() else count
    counted = [int(invalid_count), *report.tolist()]
    should = [3 + repaired.invalid_indices, 0, 0, count - first, 0]
    described = [oracle.Feature(table) for table in tables]
    pooling, weighted = (
        "mean" if problem.mean else "sum",
        sample_weights if problem.weighted else None,
    )
    if problem.vbe:
        expected, scale = oracle.forward_vbe(
            described, indices, offsets, batch_sizes, weighted, pooling
        )
    else:
        expected, scale = oracle.forward(described, indices, offsets, weighted, pooling)
    return actual, expected, scale, counted, should


def vbe_output_offsets(batch_sizes: list[list[int]], dims: tuple[int, ...]) -> torch.Tensor:
    """First element of each bag's output row: the output is rank-major, then feature, then sample."""
    starts: dict[tuple[int, int], int] = {}
    element = 0
    for rank in range(len(batch_sizes[0])):
        for t, dim in enumerate(dims):
            starts[t, rank] = element
            element += batch_sizes[t][rank] * dim
    return torch.tensor(
        [
            starts[t, rank] + sample * dims[t]
            for t in range(len(dims))
            for rank in range(len(batch_sizes[t]))
            for sample in range(batch_sizes[t][rank])
        ]
    )


def dims_of(bucket: int, *, aligned: bool) -> tuple[int, int]:
    """Two dims of a bucket: the widest, and one that leaves lanes unused."""
    return (bucket, bucket // 2 + 8) if aligned else (bucket - 1, bucket // 2 + 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("weight_dtype", WEIGHT_DTYPES)
def test_every_bucket_dtype_and_shape(
    triton_interpreter: Interpreter, weight_dtype: str, bucket: int, shape: str
) -> None:
    # The other axes and the run-time choices rotate, so that each value meets each weight dtype, bucket and shape.
    turn = BUCKETS.index(bucket) + list(WEIGHT_DTYPES).index(weight_dtype) + SHAPES.index(shape)
    aligned = turn % 2 == 0
    problem = Problem(
        weight_dtype=weight_dtype,
        bucket=bucket,
        dims=dims_of(bucket, aligned=aligned),
        index_width=32 if turn % 3 == 0 else 64,
        weighted=turn % 4 < 2,
        aligned=aligned,
        shape=shape,
        output_dtype=OUTPUT_DTYPES[turn % 3],
        mean=turn % 5 < 2,
        vbe=turn % 7 < 3,
    )
    assert oracle.within_tolerance(*solve(triton_interpreter, problem))


@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("weight_dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("vbe", [False, True])
@pytest.mark.parametrize("mean", [False, True])
def test_every_run_time_choice(
    triton_interpreter: Interpreter,
    weight_dtype: str,
    output_dtype: torch.dtype,
    *,
    mean: bool,
    vbe: bool,
) -> None:
    problem = Problem(
        weight_dtype=weight_dtype,
        output_dtype=output_dtype,
        mean=mean,
        vbe=vbe,
        weighted=vbe != mean,
    )
    assert oracle.within_tolerance(*solve(triton_interpreter, problem))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("length", range(1, 41))
def test_fbgemm_4006_any_bag_length(
    triton_interpreter: Interpreter, length: int, *, weighted: bool
) -> None:
    problem = Problem(dims=(16,), lengths=((length, length),), weighted=weighted, pruned=0.0)
    assert oracle.within_tolerance(*solve(triton_interpreter, problem))


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weight_dtype", WEIGHT_DTYPES)
def test_fbgemm_4006_every_bag_length_side_by_side(
    triton_interpreter: Interpreter, weight_dtype: str, shape: str, *, aligned: bool
) -> None:
    # Neighbours in a program have other lengths, and none is a multiple of every unroll factor.
    problem = Problem(
        weight_dtype=weight_dtype,
        bucket=32,
        dims=(24,) if aligned else (21,),
        lengths=(tuple(range(1, 41)),),
        weighted=True,
        aligned=aligned,
        shape=shape,
    )
    assert oracle.within_tolerance(*solve(triton_interpreter, problem))


# 1 is lost when it is added to the first of these in the dtype itself.
@pytest.mark.parametrize(
    ("weight_dtype", "large"), [("fp16", 2048.0), ("bf16", 256.0), ("fp32", 2.0**24)]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_torchrec_3730_widened_before_added(
    triton_interpreter: Interpreter, shape: str, weight_dtype: str, large: float
) -> None:
    rows = torch.tensor([large, 1, 1, 1, 1])[:, None].expand(5, 16)
    actual = look_up(triton_interpreter, rows, weight_dtype, torch.float32, shape)
    assert (actual == large + 4).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_pytorch_57446_empty_bags_of_mean_are_zero(
    triton_interpreter: Interpreter, shape: str
) -> None:
    problem = Problem(dims=(16,), lengths=((1, 0, 2, 0, 1),), mean=True, shape=shape, pruned=0.0)
    actual, expected, scale = solve(triton_interpreter, problem)
    assert oracle.within_tolerance(actual, expected, scale)
    assert (actual[[1, 3]] == 0).all()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_problem(triton_interpreter: Interpreter, data: st.DataObject) -> None:
    aligned, vbe = data.draw(st.booleans(), label="aligned"), data.draw(st.booleans(), label="vbe")
    bucket = data.draw(st.sampled_from([16, 32, 64]), label="bucket")
    unit = 8 if aligned else 1
    dims = data.draw(st.lists(st.integers(1, bucket // unit), min_size=1, max_size=3), label="dims")
    batch = data.draw(st.integers(1, 10), label="batch")
    bag = st.integers(0, 12)
    lengths = [
        tuple(data.draw(st.lists(bag, min_size=(n := batch + vbe * t), max_size=n)))
        for t in range(len(dims))
    ]
    problem = Problem(
        weight_dtype=data.draw(st.sampled_from(list(WEIGHT_DTYPES))),
        bucket=bucket,
        dims=tuple(d * unit for d in dims),
        rows=data.draw(st.integers(1, 9)),
        lengths=tuple(lengths),
        index_width=data.draw(st.sampled_from([32, 64])),
        weighted=data.draw(st.booleans()),
        aligned=aligned,
        shape=data.draw(st.sampled_from(SHAPES)),
        output_dtype=data.draw(st.sampled_from(OUTPUT_DTYPES)),
        mean=data.draw(st.booleans()),
        vbe=vbe,
        seed=data.draw(st.integers(0, 2**31)),
    )
    assert oracle.within_tolerance(*solve(triton_interpreter, problem))


def test_equal_inputs_give_equal_bits(triton_interpreter: Interpreter) -> None:
    problem = replace(Problem(), dims=(16,), lengths=((37, 3),))
    first = solve(triton_interpreter, problem)[0]
    assert all(torch.equal(first, solve(triton_interpreter, problem)[0]) for _ in range(4))


def test_half_output_of_fp32_rows_is_rounded_once(triton_interpreter: Interpreter) -> None:
    # fp16 only: the interpreter truncates to bf16, whose rounding the GPU tests prove.
    output_dtype, last_bit = torch.float16, 2.0**-10
    # Just above the midpoint of two neighbours: rounding to fp32 first would land on it and go down to 1.
    rows = torch.tensor([1.0, last_bit / 2, 2.0**-40])[:, None].expand(3, 16)
    actual = look_up(triton_interpreter, rows, "fp32", output_dtype, "long")
    assert (actual == 1 + last_bit).all()


def look_up(
    interpreter: Interpreter,
    rows: torch.Tensor,
    weight_dtype: str,
    output_dtype: torch.dtype,
    shape: str,
) -> torch.Tensor:
    """[1, 16], the sum of all rows of a table [rows, 16] in one bag."""
    count = rows.shape[0]
    zero = torch.zeros(1, dtype=torch.int64)
    call = KernelCall(
        "forward",
        (1, 1),
        (
            torch.zeros(1, 16, dtype=output_dtype),
            rows.contiguous().to(WEIGHT_DTYPES[weight_dtype]),
            torch.tensor([[0, 0, 16, 16, count, 0, 0, 0]]),
            torch.arange(count),
            torch.tensor([0, count]),
            torch.ones(count),
            zero,
            zero,
            1,
            16,
            OUTPUT_DTYPES.index(output_dtype),
            0,
            0,
            0,
            zero,
            zero,
            count,
        ),
        constants_of(
            "forward",
            weight_dtype=weight_dtype,
            bucket=16,
            index_width=64,
            weighted=False,
            aligned=True,
            shape=shape,
            checked=False,
        ),
    )
    return interpreter.run(call)[0][0]


CHECKED = Problem(checked=True, shape="short", lengths=((1, 0, 5), (3, 2, 4)))


def expect_checked(interpreter: Interpreter, problem: Problem) -> None:
    """The result is that of the repaired indices, to the bit that of the variant that trusts them; they are counted."""
    actual, expected, scale, counted, should = run_forward(interpreter, problem)
    assert oracle.within_tolerance(actual, expected, scale)
    assert counted == should
    if problem.invalid == 0:
        trusting = run_forward(interpreter, replace(problem, checked=False))
        assert torch.equal(actual, trusting[0])
        assert counted == [3, 0, 0, 0, 0]


@pytest.mark.parametrize("invalid", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("index_width", [32, 64])
@pytest.mark.parametrize(
    ("weight_dtype", "buckets"),
    [("fp32", [16, 32, 64, 128]), ("fp16", [16, 256]), ("bf16", [32, 64, 128])],
)
def test_checked_indices(
    triton_interpreter: Interpreter,
    weight_dtype: str,
    buckets: list[int],
    index_width: int,
    invalid: float,
) -> None:
    for bucket in buckets:
        problem = replace(
            CHECKED,
            weight_dtype=weight_dtype,
            bucket=bucket,
            dims=dims_of(bucket, aligned=True),
            index_width=index_width,
            invalid=invalid,
            seed=bucket,
        )
        expect_checked(triton_interpreter, problem)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
def test_checked_variable_batch(
    triton_interpreter: Interpreter, output_dtype: torch.dtype, *, mean: bool
) -> None:
    lengths = ((1, 0, 5, 2), (3, 2))
    problem = replace(
        CHECKED, lengths=lengths, vbe=True, mean=mean, output_dtype=output_dtype, invalid=0.3
    )
    expect_checked(triton_interpreter, problem)


def test_checked_table_without_rows(triton_interpreter: Interpreter) -> None:
    actual, _, _, counted, _ = run_forward(
        triton_interpreter, replace(CHECKED, rows=0, invalid=0.5, pruned=1.0)
    )
    assert (actual == 0).all()
    assert counted[0] > 3
