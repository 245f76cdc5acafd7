"""per_sample_weights_gradient in Triton's interpreter against the float64 oracle."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import oracle
from tests.interpreter.harness import Interpreter, KernelCall, constants_of
from tests.interpreter.updates import DTYPE_PAIRS, DTYPES, GUARD

BUCKETS = [16, 32, 64, 128, 256, 512, 1024, 2048]


@dataclass(frozen=True)
class Problem:
    """Tables of ``rows`` rows; ``lengths[t][b]`` lookups in bag b of feature t."""

    dims: tuple[int, ...] = (16, 8)
    lengths: tuple[tuple[int, ...], ...] = ((3, 0, 5), (1, 9, 2))
    weight_dtype: str = "fp32"
    gradient_dtype: str = "fp32"
    bucket: int = 16
    index_width: int = 64
    aligned: bool = True
    rows: int = 7
    mean: bool = False
    vbe: bool = False
    pruned: float = 0.2
    seed: int = 0


class Lookups:
    """A problem with its numbers drawn."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        generator = torch.Generator().manual_seed(problem.seed)
        pitch = [dim + (8 if problem.aligned else 3) for dim in problem.dims]
        weights = torch.randn(sum(p * problem.rows for p in pitch), generator=generator)
        self.weights = weights.to(DTYPES[problem.weight_dtype])
        features, self.tables, offset, column = [], [], 0, 0
        for t, dim in enumerate(problem.dims):
            features.append([t, offset, pitch[t], dim, problem.rows, column, t, t * problem.rows])
            rows = self.weights[offset : offset + pitch[t] * problem.rows]
            self.tables.append(oracle.Feature(rows.view(problem.rows, pitch[t])[:, :dim]))
            offset, column = offset + pitch[t] * problem.rows, column + dim
        self.features, self.width = torch.tensor(features), column
        flat = [length for bags in problem.lengths for length in bags]
        index_dtype = torch.int32 if problem.index_width == 32 else torch.int64
        self.offsets = torch.tensor([0, *flat]).cumsum(0).to(index_dtype)
        count = sum(flat)
        indices = torch.randint(0, problem.rows, (count,), generator=generator)
        indices[torch.rand(count, generator=generator) < problem.pruned] = -1
        self.indices = indices.to(index_dtype)
        self.bags = [len(bags) for bags in problem.lengths]
        # Ranks of uneven batch sizes.
        self.batch_sizes = [[b // 3, b - b // 3] for b in self.bags] if problem.vbe else None
        shape = [self.bags[0], column]
        if problem.vbe:
            shape = [sum(b * d for b, d in zip(self.bags, problem.dims, strict=True))]
        gradient = torch.randn(shape, generator=generator)
        self.gradient = gradient.to(DTYPES[problem.gradient_dtype])

    def output_offsets(self) -> torch.Tensor:
        """First element of each bag's gradient, of a VBE problem: rank-major, then feature, then sample."""
        if self.batch_sizes is None:
            return torch.zeros(1, dtype=torch.int64)
        starts: list[list[int]] = [[] for _ in self.bags]
        element = 0
        for rank in range(2):
            for t, dim in enumerate(self.problem.dims):
                for _ in range(self.batch_sizes[t][rank]):
                    starts[t].append(element)
                    element += dim
        return torch.tensor([start for of_feature in starts for start in of_feature])

    def run(self, interpreter: Interpreter, overlap: int = 0) -> torch.Tensor:
        """[N], interpreted; nothing else may be written."""
        problem = self.problem
        constants = constants_of(
            "per_sample_weights_gradient",
            weight_dtype=problem.weight_dtype,
            gradient_dtype=problem.gradient_dtype,
            bucket=problem.bucket,
            index_width=problem.index_width,
            aligned=problem.aligned,
        )
        count = self.indices.numel()
        memory = torch.full([count + GUARD], nan)
        call = KernelCall(
            "per_sample_weights_gradient",
            (-(-max(self.bags) // constants["BAGS"]), len(problem.dims)),
            (
                memory,
                self.gradient,
                self.weights,
                self.features,
                self.indices,
                self.offsets,
                torch.tensor([0, *self.bags]).cumsum(0),
                self.output_offsets(),
                self.bags[0],
                sum(self.bags),
                count,
                self.width,
                int(problem.mean),
                int(problem.vbe),
                overlap,
            ),
            constants,
        )
        result = interpreter.run(call)[0][0]
        assert result[count:].isnan().all()
        return result[:count]

    def expected(self) -> torch.Tensor:
        """[N] float64."""
        return oracle.per_sample_weights_gradient(
            self.gradient,
            self.tables,
            self.indices,
            self.offsets,
            "mean" if self.problem.mean else "sum",
            self.batch_sizes,
        )


def solve(interpreter: Interpreter, problem: Problem) -> torch.Tensor:
    """The interpreted result, checked."""
    lookups = Lookups(problem)
    actual, expected = lookups.run(interpreter), lookups.expected()
    # A dot of fp32 products: its error grows with the terms, of which there are dim of about 1.
    error = (actual.double() - expected).abs()
    assert (error <= 1e-5 * max(problem.dims) ** 0.5).all(), error.max()
    assert (actual[lookups.indices == -1] == 0).all()
    return actual


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize(("weight_dtype", "gradient_dtype"), DTYPE_PAIRS)
def test_every_bucket_and_dtype_pair(
    triton_interpreter: Interpreter, weight_dtype: str, gradient_dtype: str, bucket: int
) -> None:
    # The other axes and the run-time choices rotate.
    turn = BUCKETS.index(bucket) + DTYPE_PAIRS.index((weight_dtype, gradient_dtype))
    for aligned in [False, True]:
        problem = Problem(
            (bucket, bucket // 2 + 8) if aligned else (bucket - 1, bucket // 2 + 1),
            weight_dtype=weight_dtype,
            gradient_dtype=gradient_dtype,
            bucket=bucket,
            index_width=32 if turn % 3 == 0 else 64,
            aligned=aligned,
            mean=turn % 5 < 2,
            vbe=turn % 4 < 2,
            seed=turn,
        )
        solve(triton_interpreter, problem)


@pytest.mark.parametrize("index_width", [32, 64])
@pytest.mark.parametrize("vbe", [False, True])
@pytest.mark.parametrize("mean", [False, True])
def test_every_run_time_choice(
    triton_interpreter: Interpreter, index_width: int, *, mean: bool, vbe: bool
) -> None:
    lengths: tuple[tuple[int, ...], ...] = ((3, 0, 5, 1), (0, 0, 9, 2))
    if vbe:
        lengths = ((3, 0, 5, 1, 2, 0, 7), (4,))
    problem = Problem((16, 8), lengths, index_width=index_width, mean=mean, vbe=vbe)
    solve(triton_interpreter, problem)


@pytest.mark.parametrize("dim", [1, 3, 5, 100, 127])
def test_any_dim(triton_interpreter: Interpreter, dim: int) -> None:
    bucket = 16 if dim <= 16 else 128
    solve(triton_interpreter, Problem((dim,), ((4, 1),), bucket=bucket, aligned=False))


@pytest.mark.parametrize("bucket", [16, 32, 512])
@pytest.mark.parametrize("mean", [False, True])
def test_every_bag_length_side_by_side(
    triton_interpreter: Interpreter, bucket: int, *, mean: bool
) -> None:
    lengths = tuple(range(41))
    solve(triton_interpreter, Problem((bucket,), (lengths,), bucket=bucket, mean=mean))


@pytest.mark.parametrize("length", range(1, 41))
def test_any_bag_length(triton_interpreter: Interpreter, length: int) -> None:
    solve(triton_interpreter, Problem((16,), ((length,),), pruned=0.0))


def test_empty_bags_only(triton_interpreter: Interpreter) -> None:
    solve(triton_interpreter, Problem((16, 8), ((0, 0), (0, 0)), mean=True))


@pytest.mark.parametrize("bad", [nan, inf])
def test_a_pruned_row_gives_0_whatever_the_gradient(
    triton_interpreter: Interpreter, bad: float
) -> None:
    lookups = Lookups(Problem((16,), ((6,),), pruned=0.5))
    lookups.gradient[:] = bad
    actual = lookups.run(triton_interpreter)
    pruned = lookups.indices == -1
    assert 0 < pruned.sum() < 6
    assert (actual[pruned] == 0).all()
    assert not actual[~pruned].isfinite().any()


@pytest.mark.parametrize("vbe", [False, True])
@pytest.mark.parametrize(("before", "behind"), [(1, 0), (0, 1), (70, 300), (300, 70)])
def test_lookups_of_no_bag_get_0(
    triton_interpreter: Interpreter, before: int, behind: int, *, vbe: bool
) -> None:
    # More bags than one program has.
    lengths = ((2,) * 40, (1,) * (7 if vbe else 40))
    lookups = Lookups(Problem(lengths=lengths, vbe=vbe))
    expected = lookups.run(triton_interpreter)
    lookups.indices = torch.nn.functional.pad(lookups.indices, (before, behind), value=3)
    lookups.offsets = lookups.offsets + before
    actual = lookups.run(triton_interpreter)
    assert torch.equal(actual, torch.nn.functional.pad(expected, (before, behind)))


def test_padding_of_a_row_is_not_used(triton_interpreter: Interpreter) -> None:
    for aligned in [False, True]:
        lookups = Lookups(Problem((8,), ((6,),), aligned=aligned))
        expected = lookups.run(triton_interpreter)
        pitch = int(lookups.features[0, 2])
        lookups.weights.view(-1, pitch)[:, 8:] = nan
        assert torch.equal(lookups.run(triton_interpreter), expected)


def test_equal_inputs_give_equal_bits(triton_interpreter: Interpreter) -> None:
    lookups = Lookups(Problem((16,), ((37, 3),), weight_dtype="fp16", gradient_dtype="fp16"))
    first = lookups.run(triton_interpreter)
    assert all(torch.equal(first, lookups.run(triton_interpreter, n)) for n in range(1, 5))


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_problem(triton_interpreter: Interpreter, data: st.DataObject) -> None:
    aligned, vbe = data.draw(st.booleans()), data.draw(st.booleans())
    bucket = data.draw(st.sampled_from([16, 32, 64]))
    unit = 8 if aligned else 1
    dims = data.draw(st.lists(st.integers(1, bucket // unit), min_size=1, max_size=3))
    batch = data.draw(st.integers(1, 10))
    lengths = [
        tuple(data.draw(st.lists(st.integers(0, 12), min_size=(n := batch + vbe * t), max_size=n)))
        for t in range(len(dims))
    ]
    pair = data.draw(st.sampled_from(DTYPE_PAIRS))
    problem = Problem(
        tuple(dim * unit for dim in dims),
        tuple(lengths),
        *pair,
        bucket=bucket,
        index_width=data.draw(st.sampled_from([32, 64])),
        aligned=aligned,
        rows=data.draw(st.integers(1, 9)),
        mean=data.draw(st.booleans()),
        vbe=vbe,
        seed=data.draw(st.integers(0, 2**31)),
    )
    solve(triton_interpreter, problem)
