"""The forward whose blocks take over others, from the source that ships, on the host: against the oracle, and to the bit."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import oracle
from tests.interpreter.harness import Interpreter, KernelCall, constants_of, interpreter
from tests.interpreter.test_forward import vbe_output_offsets
from tests.simt.host_kernel import HostKernel, pointer
from tests.simt.small_tables import variant

INDEX_DTYPES = {32: torch.int32, 64: torch.int64}
OUTPUT_DTYPES = [torch.float32, torch.float16, torch.bfloat16]
BUCKETS = [16, 32, 64, 128]
UNIT = 8  # Elements of 16 bytes.
MARGIN = 16
UNTOUCHED = -7.0


@dataclass(frozen=True)
class Problem:
    """Tables of ``rows`` rows; ``lengths[t][b]`` lookups in bag b of feature t."""

    bucket: int = 64
    dims: tuple[int, ...] = (64, 40)
    lengths: tuple[tuple[int, ...], ...] = ((3, 0, 5) * 12, (1, 9, 2) * 12)
    rows: int = 7
    dtype: torch.dtype = torch.float16
    output_dtype: torch.dtype = torch.float32
    index_width: int = 64
    mean: bool = False
    vbe: bool = False
    pruned: float = 0.2
    seed: int = 0

    @property
    def bags(self) -> list[int]:
        return [len(lengths) for lengths in self.lengths]

    @property
    def batch_sizes(self) -> list[list[int]]:
        """Bags per feature and rank, of two ranks."""
        return [[count // 3, count - count // 3] for count in self.bags]


@dataclass(frozen=True)
class Inputs:
    """The tensors of a problem, features in the order of the output."""

    weights: torch.Tensor
    features: torch.Tensor
    tables: list[torch.Tensor]
    indices: torch.Tensor
    offsets: torch.Tensor
    bag_offsets: torch.Tensor
    output_offsets: torch.Tensor
    output: torch.Tensor  # Before the launch, without the margin behind it.

    @property
    def width(self) -> int:
        """Columns of all features."""
        return sum(table.shape[1] for table in self.tables)


def draw(problem: Problem) -> Inputs:
    """Random tables with NaN between rows, random lookups."""
    generator = torch.Generator().manual_seed(problem.seed)
    rows, tables, offset, column = [], [], UNIT, 0
    pitches = [-(-dim // UNIT) * UNIT + UNIT for dim in problem.dims]
    weights = torch.full((offset + sum(pitches) * problem.rows,), torch.nan, dtype=problem.dtype)
    for t, (dim, pitch) in enumerate(zip(problem.dims, pitches, strict=True)):
        size = pitch * problem.rows
        table = weights[offset : offset + size].view(-1, pitch)[:, :dim]
        table.copy_(torch.randn(problem.rows, dim, generator=generator))
        rows.append([t, offset, pitch, dim, problem.rows, column, t, t * problem.rows])
        tables.append(table)
        offset, column = offset + size, column + dim
    flat = [length for lengths in problem.lengths for length in lengths]
    dtype = INDEX_DTYPES[problem.index_width]
    indices = torch.randint(0, problem.rows, (sum(flat),), generator=generator)
    indices[torch.rand(sum(flat), generator=generator) < problem.pruned] = -1
    bags = problem.bags
    if problem.vbe:
        output_offsets = vbe_output_offsets(problem.batch_sizes, problem.dims)
        shape = [sum(b * d for b, d in zip(bags, problem.dims, strict=True))]
    else:
        output_offsets, shape = torch.zeros(1, dtype=torch.int64), [bags[0], column]
    return Inputs(
        weights,
        torch.tensor(rows),
        tables,
        indices.to(dtype),
        torch.tensor([0, *flat]).cumsum(0).to(dtype),
        torch.tensor([0, *bags]).cumsum(0),
        output_offsets,
        torch.full(shape, UNTOUCHED, dtype=problem.output_dtype),
    )


def kernel_of(problem: Problem) -> HostKernel:
    """The variant of a problem."""
    return variant(
        "forward_work_stealing",
        bf16=int(problem.dtype == torch.bfloat16),
        bucket=problem.bucket,
        index_width=problem.index_width,
    )


def bags_of_block(bucket: int) -> int:
    """Bags that a block of the bucket's variants takes: 16 of 128 columns, and as many more as rows are narrower."""
    return 16 * 128 // bucket


@dataclass(frozen=True)
class Stealing:
    """How blocks went on during a launch: blocks taken over, and questions that were refused while some were left."""

    taken: int
    refused: int
    blocks: int


def look_up(
    problem: Problem, inputs: Inputs, *, side_by_side: int = 2
) -> tuple[torch.Tensor, Stealing]:
    """The output of a launch, with something after it that must stay."""
    kernel = kernel_of(problem)
    count = inputs.output.numel()
    memory = torch.full((count + MARGIN,), UNTOUCHED, dtype=problem.output_dtype)
    blocks = -(-max(problem.bags) // bags_of_block(problem.bucket))
    taken, refused = (kernel.setting(name) for name in ("simt_blocks_taken", "simt_refusals"))
    taken.value = refused.value = 0
    kernel(
        blocks,
        [
            pointer(memory),
            *map(
                pointer,
                (
                    inputs.weights,
                    inputs.features,
                    inputs.indices,
                    inputs.offsets,
                    inputs.bag_offsets,
                    inputs.output_offsets,
                ),
            ),
            ctypes.c_int(problem.bags[0]),
            ctypes.c_int(inputs.width),
            ctypes.c_int(OUTPUT_DTYPES.index(problem.output_dtype)),
            ctypes.c_int(problem.mean),
            ctypes.c_int(problem.vbe),
            ctypes.c_int(3),
        ],
        side_by_side,
        blocks_y=len(problem.dims),
    )
    assert (memory[count:] == UNTOUCHED).all()
    stealing = Stealing(taken.value, refused.value, blocks * len(problem.dims))
    return memory[:count].view(inputs.output.shape), stealing


def in_order(problem: Problem, inputs: Inputs) -> torch.Tensor:
    """The result in fp32, rows added one after the other, then rounded: [T, bags] rows, as a list in the output's places."""
    output = torch.full_like(inputs.output, UNTOUCHED)
    flat = output.view(-1)
    bag = 0
    for t, table in enumerate(inputs.tables):
        column = sum(other.shape[1] for other in inputs.tables[:t])
        for b in range(problem.bags[t]):
            start, end = inputs.offsets[bag].item(), inputs.offsets[bag + 1].item()
            total = torch.zeros(table.shape[1])
            for index in inputs.indices[int(start) : int(end)].tolist():
                if index >= 0:
                    total = total + table[index].float()
            if problem.mean:
                total = total / max(int(end - start), 1)
            at = int(inputs.output_offsets[bag]) if problem.vbe else b * inputs.width + column
            flat[at : at + table.shape[1]] = total.to(problem.output_dtype)
            bag += 1
    return output


def check(problem: Problem, *, side_by_side: int = 2) -> Stealing:
    """Look up; the result is the oracle's within the tolerance, and that of adding in order to the bit."""
    inputs = draw(problem)
    actual, stealing = look_up(problem, inputs, side_by_side=side_by_side)
    described = [oracle.Feature(table) for table in inputs.tables]
    pooling = "mean" if problem.mean else "sum"
    lookups = (described, inputs.indices, inputs.offsets)
    if problem.vbe:
        expected, scale = oracle.forward_vbe(*lookups, problem.batch_sizes, None, pooling)
    else:
        expected, scale = oracle.forward(*lookups, None, pooling)
    assert oracle.within_tolerance(actual, expected, scale)
    assert torch.equal(actual, in_order(problem, inputs))
    return stealing


@pytest.fixture(params=[0, 1], ids=["last-thread-first", "first-thread-first"])
def turns(request: pytest.FixtureRequest) -> Iterator[None]:
    """The order in which the threads of a block take turns."""
    setting = kernel_of(Problem()).setting("simt_first_thread_first")
    setting.value = request.param
    yield
    setting.value = 0


@pytest.fixture(params=[0, 1, 3])
def refuse_every(request: pytest.FixtureRequest) -> Iterator[int]:
    """Every so many questions are refused; 0: none before the last block."""
    setting = kernel_of(Problem()).setting("simt_refuse_every")
    setting.value = request.param
    yield request.param
    setting.value = 0


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bucket", BUCKETS)
def test_every_bucket_and_dtype(bucket: int, dtype: torch.dtype, *, mean: bool) -> None:
    for dims in ((bucket, bucket // 2 + 8), (bucket - 1, bucket // 2 + 1)):
        check(Problem(bucket, dims, dtype=dtype, mean=mean))


@pytest.mark.parametrize("vbe", [False, True])
@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("index_width", [32, 64])
def test_outputs_and_indices(index_width: int, output_dtype: torch.dtype, *, vbe: bool) -> None:
    # Rows of the output that start between vectors, and such that do not.
    for dims in ((64, 40), (57, 64), (8, 64)):
        problem = Problem(64, dims, index_width=index_width, output_dtype=output_dtype, vbe=vbe)
        check(problem)
        check(replace(problem, mean=True))


@pytest.mark.usefixtures("turns")
def test_every_block_is_pooled_once_whoever_does_it(refuse_every: int) -> None:
    # Bags of different lengths, 12 blocks a feature.
    lengths = tuple((b * 7) % 4 for b in range(12 * bags_of_block(128) - 3))
    problem = Problem(128, (128, 72, 100), (lengths, lengths[::-1], lengths))
    for side_by_side in (1, 2, 8):
        stealing = check(problem, side_by_side=side_by_side)
        started = stealing.blocks - stealing.taken
        # Who is refused ends, so another one starts.
        assert started >= min(side_by_side, stealing.blocks)
        if refuse_every == 0:
            assert started == side_by_side
        else:
            assert stealing.refused > 0
            assert started > side_by_side or refuse_every > 1
        assert (stealing.taken == 0) == (refuse_every == 1)


def test_a_grid_of_one_block() -> None:
    assert check(Problem(64, (64,), ((2,),))).taken == 0


@pytest.mark.parametrize("batch", [1, 31, 32, 33, 63, 64, 65, 96])
def test_batches(batch: int) -> None:
    lengths = tuple(b % 3 for b in range(batch))
    check(Problem(64, (64, 64), (lengths, lengths)))


def test_features_with_different_batches() -> None:
    # A block of the feature with few bags has none of its own.
    problem = Problem(32, (32, 24), ((1,) * 200, (2,) * 3), vbe=True)
    check(problem)


def test_long_bags_among_short_ones() -> None:
    lengths = tuple(300 if b == 17 else b % 3 for b in range(64))
    check(Problem(64, (64,), (lengths,), rows=50))


def test_no_lookups_and_only_pruned_ones() -> None:
    assert (look_up(p := Problem(lengths=((0,) * 40,) * 2), draw(p))[0] == 0).all()
    assert (look_up(p := Problem(pruned=1, mean=True), draw(p))[0] == 0).all()


def test_pruned_in_the_middle_counts_in_the_length() -> None:
    problem = Problem(16, (16,), ((4,),), mean=True)
    inputs = replace(draw(problem), indices=torch.tensor([1, -1, 1, 3]))
    table = inputs.tables[0].float()
    output, _ = look_up(problem, inputs)
    assert torch.equal(output[0], (table[1] + table[1] + table[3]) / 4)


def test_torchrec_3730_widened_before_added() -> None:
    problem = Problem(16, (16,), ((4,),), rows=2)
    inputs = draw(problem)
    inputs.tables[0][0], inputs.tables[0][1] = 2048.0, 1.0
    inputs = replace(inputs, indices=torch.tensor([0, 1, 1, 1]))
    assert (look_up(problem, inputs)[0] == 2051).all()


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_a_row_that_is_not_finite_stays_in_its_bags(value: float) -> None:
    problem = Problem(64, (64,), ((2,) * 40,), pruned=0)
    inputs = draw(problem)
    inputs.tables[0][6, 50] = value
    output, _ = look_up(problem, inputs)
    has_it = (inputs.indices.view(-1, 2) == 6).any(1)
    assert has_it.any()
    assert not output[has_it, 50].isfinite().any()
    assert output.isfinite().sum() == output.numel() - has_it.sum()


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_bags(data: st.DataObject) -> None:
    bucket = data.draw(st.sampled_from(BUCKETS))
    batch = data.draw(st.integers(1, 3 * bags_of_block(bucket)))
    longest = data.draw(st.sampled_from([1, 3, 20]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    dims = data.draw(st.lists(st.integers(bucket // 2 + 1, bucket), min_size=1, max_size=3))
    lengths = torch.randint(0, longest + 1, (len(dims), batch), generator=generator).tolist()
    problem = Problem(
        bucket,
        tuple(dims),
        tuple(map(tuple, lengths)),
        dtype=data.draw(st.sampled_from([torch.float16, torch.bfloat16])),
        output_dtype=data.draw(st.sampled_from(OUTPUT_DTYPES)),
        index_width=data.draw(st.sampled_from([32, 64])),
        mean=data.draw(st.booleans()),
        vbe=data.draw(st.booleans()),
    )
    check(problem, side_by_side=data.draw(st.integers(1, 4)))


@pytest.fixture(scope="module")
def triton_interpreter() -> Iterator[Interpreter]:
    with interpreter() as running:
        yield running


# The interpreter cuts bf16 off where the GPU rounds.
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES[:2])
@pytest.mark.parametrize("bucket", BUCKETS)
def test_the_bits_are_those_of_the_general_kernel(
    triton_interpreter: Interpreter, bucket: int, output_dtype: torch.dtype, *, mean: bool
) -> None:
    dims = (bucket, bucket // 2 + 3)
    problem = Problem(bucket, dims, output_dtype=output_dtype, mean=mean)
    inputs = draw(problem)
    constants = constants_of(
        "forward",
        weight_dtype="fp16",
        bucket=bucket,
        index_width=64,
        weighted=False,
        aligned=True,
        shape="short",
        checked=False,
    )
    unused = torch.zeros(1, dtype=torch.int64)
    call = KernelCall(
        "forward",
        (-(-problem.bags[0] // constants["BAGS"]), len(dims)),
        (
            inputs.output.clone(),
            inputs.weights,
            inputs.features,
            inputs.indices,
            inputs.offsets,
            torch.zeros(1),
            inputs.bag_offsets,
            inputs.output_offsets,
            problem.bags[0],
            inputs.width,
            OUTPUT_DTYPES.index(output_dtype),
            int(mean),
            0,
            0,
            unused,
            unused,
            inputs.indices.numel(),
        ),
        constants,
    )
    general = triton_interpreter.run(call)[0][0]
    assert torch.equal(look_up(problem, inputs)[0], general)
