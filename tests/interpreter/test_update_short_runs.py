"""update_short_runs in Triton's interpreter against the float64 oracle: every axis value, dims, places of runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.interpreter.harness import Interpreter, constants_of
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


def dims_of(bucket: int, *, aligned: bool) -> tuple[int, int]:
    """Two dims of a bucket: the widest, and one that leaves lanes unused."""
    return (bucket, bucket // 2 + 8) if aligned else (bucket - 1, bucket // 2 + 1)


@pytest.mark.parametrize("per_weight", [False, True])
@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize(("weight_dtype", "gradient_dtype"), DTYPE_PAIRS)
def test_every_bucket_dtype_pair_and_optimizer(
    triton_interpreter: Interpreter,
    weight_dtype: str,
    gradient_dtype: str,
    bucket: int,
    *,
    per_weight: bool,
) -> None:
    # The optimizers with a state per weight or without, the other axes and the run-time choices rotate.
    turn = BUCKETS.index(bucket) + DTYPE_PAIRS.index((weight_dtype, gradient_dtype))
    optimizer = OPTIMIZERS[2 * per_weight + turn // 2 % 2]
    aligned = turn % 2 == 0
    wide, narrow = dims_of(bucket, aligned=aligned)
    problem = Problem(
        (
            Table(wide, (1, 0, 2, 3), bucket, aligned),
            Table(narrow, (4, 1), bucket, aligned, features=1 + turn % 2),
        ),
        optimizer,
        weight_dtype,
        gradient_dtype,
        weighted=turn % 3 == 0,
        mean=turn % 5 < 2,
        vbe=turn % 7 < 3,
        pruned=turn % 2,
        seed=turn,
    )
    solve(triton_interpreter, problem)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
@pytest.mark.parametrize("dim", [1, 3, 5, 100, 127])
def test_any_dim(triton_interpreter: Interpreter, dim: int, optimizer: Optimizer) -> None:
    bucket = 16 if dim <= 16 else 128
    table = Table(dim, (2, 0, 1, 3), bucket, aligned=False)
    solve(triton_interpreter, Problem((table,), optimizer))


@pytest.mark.parametrize("programs", [1, 3, 50])
def test_runs_of_all_short_lengths_side_by_side(
    triton_interpreter: Interpreter, programs: int
) -> None:
    lengths = (1, 127, 2, 0, 3, 128, 40, 1, 1, 64, 5, 129, 7, 126, 1)
    problem = Problem((Table(16, lengths),), batch=40, weighted=True, pruned=9)
    solve(triton_interpreter, problem, programs)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("vbe", [False, True])
def test_factors_and_positions(
    triton_interpreter: Interpreter, pooling: str, *, weighted: bool, vbe: bool
) -> None:
    tables = (Table(16, (5, 2, 0, 9), features=2), Table(8, (3, 3, 3)))
    problem = Problem(tables, weighted=weighted, mean=pooling == "mean", vbe=vbe, batch=6, pruned=2)
    solve(triton_interpreter, problem)


def test_groups_update_their_own_runs(triton_interpreter: Interpreter) -> None:
    problem = Problem(
        (
            Table(64, (1, 2, 3, 130), 64),
            Table(40, (0, 0, 4), 64, features=2),
            Table(17, (2, 300), 32, aligned=False),
            Table(16, (0, 0), 16),  # Nothing is looked up: its launches find no run.
            Table(5, (7, 1), 16, aligned=False),
        ),
        weighted=True,
        pruned=3,
    )
    solve(triton_interpreter, problem)


@pytest.mark.parametrize("optimizer", [SGD, ROWWISE_ADAGRAD, ADAM], ids=lambda o: o.name)
def test_a_group_alone_leaves_the_others(
    triton_interpreter: Interpreter, optimizer: Optimizer
) -> None:
    tables = (Table(32, (1, 200), 32), Table(16, (2, 140)))
    update = Update(Problem(tables, optimizer))
    calls = update.calls(update.transposed(), programs=2, overlap=0)
    narrow = [call for call in calls if call.constants.get("BUCKET") == 16]
    weights, partials = triton_interpreter.run(*narrow)[-1][:2]
    _, changed = update.expected()
    changed["weights"][: update.table_offsets[1]] = False
    same = bits(weights) == bits(update.before.weights)
    assert same[~changed["weights"]].all()
    assert not same[changed["weights"]].all()
    # Only the chunk of the narrow table's run has a sum, and only in the group's columns.
    assert partials.isnan().sum() == partials.numel() - 16


def test_sums_in_the_order_of_the_lookups(triton_interpreter: Interpreter) -> None:
    # Large numbers that cancel only in this order.
    update = Update(Problem((Table(16, (4,)),), SGD, batch=4))
    inputs = update.transposed()
    update.gradient[:] = torch.tensor([2.0**26, 1.0, -(2.0**26), 1.0])[:, None]
    inputs.positions[:] = torch.arange(4, dtype=torch.int32) * 16
    after = update.run(triton_interpreter, inputs)
    row = slice(update.table_offsets[0], update.table_offsets[0] + 16)
    expected = update.before.weights[row] - torch.tensor(0.1) * 1.0
    assert torch.allclose(after.weights[row], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
@pytest.mark.parametrize("weight_dtype", ["fp32", "fp16"])
def test_bits_do_not_depend_on_the_place_of_a_run(
    triton_interpreter: Interpreter, weight_dtype: str, optimizer: Optimizer
) -> None:
    lengths = tuple(1 + (7 * r) % 11 for r in range(40))
    problem = Problem((Table(16, lengths),), optimizer, weight_dtype, weighted=True)
    update = Update(problem)
    first = update.run(triton_interpreter)
    update.check(first)
    for seed in range(3):
        shuffled = update.transposed().shuffled(seed)
        other = update.run(triton_interpreter, shuffled, programs=1 + seed)
        assert first.equals(other)


def test_bits_of_zeros_do_not_depend_on_the_place_of_a_run(triton_interpreter: Interpreter) -> None:
    # -0 + 0 is 0: a sum must not tell how many empty steps its neighbours made it take.
    problem = Problem((Table(16, (1, 1, 1, 1, 9)),), SGD, gradient_value=-0.0)
    update = Update(problem)
    update.before.weights[:] = -0.0
    states = [update.run(triton_interpreter, programs=1)]
    alone = Update(Problem((Table(16, (1, 1, 1, 1)),), SGD, gradient_value=-0.0))
    alone.before.weights[:] = -0.0
    states.append(alone.run(triton_interpreter))
    start, end = update.table_offsets[0], update.table_offsets[0] + 4 * 24
    assert torch.equal(*(bits(state.weights)[start:end] for state in states))


def test_equal_inputs_give_equal_bits(triton_interpreter: Interpreter) -> None:
    update = Update(Problem((Table(100, (1, 50, 3), 128, aligned=False),), ADAM, weighted=True))
    first = update.run(triton_interpreter)
    for programs in range(1, 5):
        assert first.equals(update.run(triton_interpreter, programs=programs, overlap=programs % 8))


def test_every_long_run_threshold_is_the_same() -> None:
    axes = {"bucket": 64, "aligned": True}
    found = {
        constants_of(
            "update_short_runs",
            weight_dtype="fp16",
            gradient_dtype="fp16",
            factored=False,
            optimizer="adam",
            **axes,
        )["CHUNK"],
        constants_of("sum_chunks", gradient_dtype="fp16", factored=False, **axes)["CHUNK"],
        constants_of("update_long_runs", weight_dtype="fp16", optimizer="adam", **axes)["CHUNK"],
        constants_of("find_runs", key_width=32)["CHUNK"],
    }
    assert found == {CHUNK}


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_problem(triton_interpreter: Interpreter, data: st.DataObject) -> None:
    tables = []
    for _ in range(data.draw(st.integers(1, 3))):
        aligned, bucket = data.draw(st.booleans()), data.draw(st.sampled_from([16, 32]))
        unit = 8 if aligned else 1
        dim = data.draw(st.integers(1, bucket // unit)) * unit
        uses = data.draw(
            st.lists(st.sampled_from([0, 1, 2, 3, 9, 30, 131]), min_size=1, max_size=6)
        )
        features = data.draw(st.integers(1, 2))
        tables.append(Table(dim, tuple(uses), bucket, aligned, features))
    pair = data.draw(st.sampled_from(DTYPE_PAIRS))
    problem = Problem(
        tuple(tables),
        data.draw(st.sampled_from(OPTIMIZERS)),
        *pair,
        batch=data.draw(st.integers(3, 9)),
        weighted=data.draw(st.booleans()),
        mean=data.draw(st.booleans()),
        vbe=data.draw(st.booleans()),
        pruned=data.draw(st.integers(0, 3)),
        seed=data.draw(st.integers(0, 2**31)),
    )
    solve(triton_interpreter, problem, data.draw(st.integers(1, 4)))
