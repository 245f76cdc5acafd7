"""sum_and_update_long_runs in Triton's interpreter: against the float64 oracle, and to the bit against the two kernels.

The interpreter runs one program after the other, so that the chunk that comes last in time depends on their number.
"""

from __future__ import annotations

import pytest
import torch

from aot_build.planner import make_plan
from tests.interpreter.harness import SPECS, Interpreter
from tests.interpreter.updates import (
    CHUNK,
    DTYPE_PAIRS,
    ROWWISE_ADAGRAD,
    SGD,
    Problem,
    State,
    Table,
    Transposed,
    Update,
)
from tests.oracle import Optimizer

KERNEL = "sum_and_update_long_runs"
PLANNED = make_plan(SPECS, "full", ["sm90", "sm100"]).kernels
LENGTHS = (128, 129, 255, 256, 257, 511, 512, 513, 5000)
DECAYED = Optimizer("rowwise_adagrad", 0.1, weight_decay=0.3, weight_decay_mode="l2")


def table(*uses: int, features: int = 1) -> Table:
    """A table of rows of 40 columns, which have the least bucket that there is."""
    return Table(40, uses, 64, features=features)


def verify(
    interpreter: Interpreter,
    update: Update,
    transposed: Transposed | None = None,
    programs: int = 2,
    overlap: int = 0,
) -> State:
    """Fused long runs are right, have the bits of the two launches, and count every chunk once."""
    transposed = transposed or update.transposed()
    fused, counters = update.run_fused(interpreter, transposed, programs, overlap)
    update.check(fused)
    assert fused.equals(update.run(interpreter, transposed, programs))
    expected = torch.zeros_like(counters)
    if not update.problem.found_inf:
        starts = transposed.run_starts.tolist()
        for run in range(int(transposed.run_begins[-1])):
            # The sum of a single chunk is in registers already.
            chunks = (starts[run + 1] - starts[run]) // CHUNK
            expected[starts[run] // CHUNK] += chunks if chunks > 1 else 0
    assert torch.equal(counters, expected)
    return fused


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("optimizer", [SGD, ROWWISE_ADAGRAD], ids=lambda o: o.name)
def test_one_run(triton_interpreter: Interpreter, optimizer: Optimizer, length: int) -> None:
    problem = Problem((table(length),), optimizer, batch=500)
    verify(triton_interpreter, Update(problem))


@pytest.mark.parametrize("programs", [1, 2, 3, 7])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_length_side_by_side(
    triton_interpreter: Interpreter, programs: int, *, weighted: bool
) -> None:
    uses = (1, *LENGTHS, 127, 300, 2)
    problem = Problem((table(*uses),), DECAYED, "fp16", batch=60, weighted=weighted, pruned=150)
    verify(triton_interpreter, Update(problem), programs=programs)


@pytest.mark.parametrize("number", range(len(PLANNED[KERNEL].variants)))
def test_every_variant(triton_interpreter: Interpreter, number: int) -> None:
    axes = PLANNED[KERNEL].variants[number].axes
    bucket = int(axes["bucket"])
    factored = bool(axes["factored"])
    problem = Problem(
        (Table(bucket - 8, (2, 150, 0, 260), bucket, features=1 + number % 2),),
        (SGD, ROWWISE_ADAGRAD, DECAYED)[number % 3],
        str(axes["weight_dtype"]),
        str(axes["gradient_dtype"]),
        # Sums of a few numbers of one size: the tolerance is of the row, not of the sum.
        batch=40,
        weighted=factored and number % 4 != 0,
        mean=factored and number % 4 != 1,
        vbe=number % 7 < 3,
        pruned=3,
        seed=number,
    )
    assert problem.factored == factored
    verify(triton_interpreter, Update(problem))


def test_what_there_are_variants_for() -> None:
    axes = [variant.axes for variant in PLANNED[KERNEL].variants]
    assert {axis["bucket"] for axis in axes} == {64, 128, 256}
    assert {(axis["weight_dtype"], axis["gradient_dtype"]) for axis in axes} == set(DTYPE_PAIRS)
    assert {axis["bucket"] for axis in axes if axis["factored"]} == {64, 128}
    assert len(axes) == 5 * 5


def test_groups_share_the_counters(triton_interpreter: Interpreter) -> None:
    tables = (Table(136, (300, 1), 256), table(128, 0, 260, features=2), Table(96, (131, 600), 128))
    after = verify(triton_interpreter, Update(Problem(tables, pruned=150, batch=9)), programs=3)
    # Partial sums of runs of one chunk are not stored.
    assert (~after.partials.isnan()).any(dim=1).sum() == 2 + 2 + 4


@pytest.mark.parametrize("seed", range(3))
def test_bits_do_not_depend_on_the_place_of_a_run(
    triton_interpreter: Interpreter, seed: int
) -> None:
    lengths = (1, 400, 128, 60, 127, 255, 256, 700, 2)
    update = Update(Problem((table(*lengths),), weight_dtype="fp16", weighted=True, batch=20))
    shuffled = update.transposed().shuffled(seed)
    after = verify(triton_interpreter, update, shuffled, programs=1 + 2 * seed, overlap=seed)
    assert after.equals(update.run(triton_interpreter))


@pytest.mark.parametrize("shift", [0, 1, 64, 127])
def test_a_chunk_may_start_anywhere(triton_interpreter: Interpreter, shift: int) -> None:
    verify(triton_interpreter, Update(Problem((table(shift, 300, 513),), batch=30)))


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(Problem((table(300, 3),), clip=0.2, gradient_scale=8.0), id="scaled"),
        pytest.param(Problem((table(300, 3),), found_inf=0.0), id="finite"),
        pytest.param(Problem((table(300, 3),), found_inf=1.0), id="not-finite"),
        pytest.param(Problem((table(0, 0),), pruned=500), id="pruned-alone"),
    ],
)
def test_options(triton_interpreter: Interpreter, problem: Problem) -> None:
    verify(triton_interpreter, Update(problem))


def test_stochastic_rounding_draws_the_same_numbers(triton_interpreter: Interpreter) -> None:
    problem = Problem((table(300, 140, 3),), weight_dtype="bf16", rounding_seed=5)
    update = Update(problem)
    fused, _ = update.run_fused(triton_interpreter)
    assert fused.equals(update.run(triton_interpreter))
    nearest = Update(Problem((table(300, 140, 3),), weight_dtype="bf16"))
    assert not fused.equals(nearest.run_fused(triton_interpreter)[0])


def test_constants_that_make_the_bits_are_those_of_the_two_kernels() -> None:
    for fused in PLANNED[KERNEL].variants:
        for kernel, names, options in (
            ("sum_chunks", ("ROWS", "UNROLL", "CHUNK"), ("num_warps", "enable_fp_fusion")),
            ("update_long_runs", ("PARTIALS", "CHUNK"), ("enable_fp_fusion",)),
        ):
            wanted = {**fused.axes, "aligned": True, "optimizer": "rowwise"}
            others = [
                variant
                for variant in PLANNED[kernel].variants
                if variant.axes.items() <= wanted.items()
            ]
            assert len(others) == 1
            for arch, build in fused.builds.items():
                theirs = others[0].builds[arch]
                for name in names:
                    assert build.kernel_constants[name] == theirs.kernel_constants[name]
                for option in options:
                    assert build.options[option] == theirs.options[option]
