"""sum_chunks and update_long_runs in Triton's interpreter against the float64 oracle: run lengths around the chunk's."""

from __future__ import annotations

import pytest
import torch

from tests.interpreter.harness import Interpreter
from tests.interpreter.updates import (
    ADAM,
    CHUNK,
    DTYPE_PAIRS,
    OPTIMIZERS,
    ROWWISE_ADAGRAD,
    SGD,
    Problem,
    Table,
    Update,
    bits,
    solve,
)
from tests.oracle import Optimizer

BUCKETS = [16, 32, 64, 128, 256, 512, 1024, 2048]
LENGTHS = [1, 2, 127, 128, 129, 255, 256, 257, 511, 512, 513]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
@pytest.mark.parametrize("weighted", [False, True])
def test_every_length_side_by_side(
    triton_interpreter: Interpreter, optimizer: Optimizer, *, weighted: bool
) -> None:
    problem = Problem((Table(16, tuple(LENGTHS)),), optimizer, batch=30, weighted=weighted)
    solve(triton_interpreter, problem)


@pytest.mark.parametrize("length", LENGTHS)
def test_one_run(triton_interpreter: Interpreter, length: int) -> None:
    # Alone and from the first lookup on: nothing of another run can stand in for what is missing.
    solve(triton_interpreter, Problem((Table(5, (length,), aligned=False),), SGD, mean=True))


@pytest.mark.parametrize("programs", [1, 3, 100])
def test_a_run_of_many_chunks(triton_interpreter: Interpreter, programs: int) -> None:
    problem = Problem((Table(16, (3, 5000, 140)),), batch=50, pruned=200)
    solve(triton_interpreter, problem, programs)


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize(("weight_dtype", "gradient_dtype"), DTYPE_PAIRS)
def test_every_bucket_and_dtype_pair(
    triton_interpreter: Interpreter, weight_dtype: str, gradient_dtype: str, bucket: int
) -> None:
    turn = BUCKETS.index(bucket) + DTYPE_PAIRS.index((weight_dtype, gradient_dtype))
    aligned = turn % 2 == 0
    dim = bucket - 8 if aligned else bucket // 2 + 1
    optimizer = OPTIMIZERS[turn % len(OPTIMIZERS)]
    problem = Problem(
        (Table(dim, (2, 150, 0), bucket, aligned, features=1 + turn % 2),),
        optimizer,
        weight_dtype,
        gradient_dtype,
        # Sums of a few numbers of one size: the tolerance is of the row, not of the sum.
        batch=40,
        weighted=turn % 3 == 0,
        mean=turn % 5 < 2,
        vbe=turn % 7 < 3,
        pruned=3,
        seed=turn,
    )
    solve(triton_interpreter, problem)


def test_groups_sum_and_update_their_own_chunks(triton_interpreter: Interpreter) -> None:
    tables = (
        Table(24, (300, 1), 32),
        Table(16, (128, 0, 260), features=2),
        Table(9, (131,), aligned=False),
    )
    update, after = solve(triton_interpreter, Problem(tables, weighted=True, pruned=150, batch=9))
    written = ~after.partials.isnan()
    used = update.transposed().chunk_runs >= 0
    assert used.sum() == 6
    assert torch.equal(written[:-1].any(dim=1), used)
    # A row of partial sums ends with the bucket of its group.
    assert written.sum(dim=1).unique().tolist() == [0, 16, 32]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_bits_do_not_depend_on_the_place_of_a_run(
    triton_interpreter: Interpreter, optimizer: Optimizer
) -> None:
    lengths = (1, 400, 128, 60, 127, 255, 256, 700, 2)
    update = Update(Problem((Table(16, lengths),), optimizer, "fp16", weighted=True, batch=20))
    first = update.run(triton_interpreter)
    update.check(first)
    for seed in range(3):
        shuffled = update.transposed().shuffled(seed)
        assert first.equals(update.run(triton_interpreter, shuffled, programs=1 + 2 * seed))


@pytest.mark.parametrize("shift", [0, 1, 64, 127])
def test_a_chunk_may_start_anywhere(triton_interpreter: Interpreter, shift: int) -> None:
    # The same run after others of any length: its chunks have other slots, its bits are the same.
    update = Update(Problem((Table(8, (shift, 300)),), SGD, gradient_value=0.1))
    after = update.run(triton_interpreter)
    update.check(after)
    alone = Update(Problem((Table(8, (0, 300)),), SGD, gradient_value=0.1))
    row = slice(alone.table_offsets[0] + 16, alone.table_offsets[0] + 24)
    alone.before.weights[row] = update.before.weights[row]
    assert torch.equal(bits(alone.run(triton_interpreter).weights[row]), bits(after.weights[row]))


def test_equal_inputs_give_equal_bits(triton_interpreter: Interpreter) -> None:
    table = Table(20, (CHUNK, 50, 1000), 32, aligned=False)
    update = Update(Problem((table,), ADAM, weighted=True, mean=True))
    first = update.run(triton_interpreter)
    for programs in range(1, 5):
        assert first.equals(update.run(triton_interpreter, programs=programs, overlap=programs % 8))


def test_no_lookup_at_all_is_a_chunk_of_nothing(triton_interpreter: Interpreter) -> None:
    # Only pruned lookups, more than a chunk of them: no run owns a row.
    update, after = solve(
        triton_interpreter, Problem((Table(16, (0, 0)),), ROWWISE_ADAGRAD, pruned=500)
    )
    assert bool(after.partials.isnan().all())
    assert torch.equal(after.weights, update.before.weights)
