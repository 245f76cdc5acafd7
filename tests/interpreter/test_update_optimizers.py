"""The optimizers' formulas and what surrounds them, in Triton's interpreter: decay, scale, clip, found_inf, the step."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.interpreter.harness import Interpreter, KernelCall
from tests.interpreter.updates import (
    ADAGRAD,
    ADAM,
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

# Short and long runs, in two groups.
TABLES = (Table(16, (2, 0, 130)), Table(7, (1, 140), aligned=False))


@pytest.mark.parametrize("decay", ["none", "l2", "decoupled"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
@pytest.mark.parametrize(("weight_dtype", "gradient_dtype"), DTYPE_PAIRS)
def test_every_decay(
    triton_interpreter: Interpreter,
    weight_dtype: str,
    gradient_dtype: str,
    optimizer: Optimizer,
    decay: str,
) -> None:
    decaying = replace(optimizer, weight_decay=0.3, weight_decay_mode=decay)
    problem = Problem(TABLES, decaying, weight_dtype, gradient_dtype, batch=20, mean=decay == "l2")
    solve(triton_interpreter, problem)


@pytest.mark.parametrize("steps_before", [0, 1, 100, 10**6])
def test_adam_corrects_the_bias_of_its_step(
    triton_interpreter: Interpreter, steps_before: int
) -> None:
    problem = Problem(TABLES, replace(ADAM, beta2=0.9999), batch=20, steps_before=steps_before)
    solve(triton_interpreter, problem)


@pytest.mark.parametrize(("beta1", "beta2"), [(0.0, 0.999), (0.9, 0.0), (0.0, 0.0)])
def test_adam_without_memory(triton_interpreter: Interpreter, beta1: float, beta2: float) -> None:
    problem = Problem(TABLES, replace(ADAM, beta1=beta1, beta2=beta2), batch=20)
    solve(triton_interpreter, problem)


@pytest.mark.parametrize("eps", [0.0, 1.0])
@pytest.mark.parametrize("optimizer", [ROWWISE_ADAGRAD, ADAGRAD, ADAM], ids=lambda o: o.name)
def test_eps(triton_interpreter: Interpreter, optimizer: Optimizer, eps: float) -> None:
    solve(triton_interpreter, Problem(TABLES, replace(optimizer, eps=eps), batch=20))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
@pytest.mark.parametrize("value", [0.0, -0.0])
def test_a_zero_gradient_still_gets_its_step(
    triton_interpreter: Interpreter, optimizer: Optimizer, value: float
) -> None:
    decaying = replace(optimizer, weight_decay=0.5, weight_decay_mode="decoupled")
    problem = Problem(TABLES, decaying, batch=20, gradient_value=value)
    update, after = solve(triton_interpreter, problem)
    changed = update.expected()[1]["weights"]
    assert (after.weights[changed] != update.before.weights[changed]).all()


@pytest.mark.parametrize("scale", [None, 1024.0, 3.0])
@pytest.mark.parametrize("clip", [0.05, 1.0, inf])
@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=lambda o: o.name)
def test_scale_and_clip(
    triton_interpreter: Interpreter, optimizer: Optimizer, clip: float, scale: float | None
) -> None:
    problem = Problem(TABLES, optimizer, batch=20, clip=clip, gradient_scale=scale, weighted=True)
    update = Update(problem)
    if scale is not None:
        update.gradient *= scale
    update.check(update.run(triton_interpreter))


@pytest.mark.parametrize("clip", [0.5, inf])
@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("gradient_dtype", ["fp32", "fp16"])
def test_what_is_not_finite_reaches_the_row(
    triton_interpreter: Interpreter, gradient_dtype: str, bad: float, clip: float
) -> None:
    # A clamp that takes NaN for its bound would hide an overflow. An infinite element is bounded, though.
    problem = Problem((Table(16, (3, 200)),), SGD, "fp16", gradient_dtype, batch=2, clip=clip)
    update = Update(problem)
    update.gradient[:, 3] = bad
    after = update.run(triton_interpreter)
    update.check(after)
    rows = after.weights[update.table_offsets[0] :][:48].view(2, 24)[:, :16]
    finite = rows.isfinite()
    assert finite[:, 3].all() == (clip != inf and abs(bad) == inf)
    assert finite[:, :3].all()
    assert finite[:, 4:].all()


@pytest.mark.parametrize("decay", ["none", "decoupled"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_an_infinite_weight_stays_alone_without_l2_decay(
    triton_interpreter: Interpreter, optimizer: Optimizer, decay: str
) -> None:
    decaying = replace(optimizer, weight_decay=0.3, weight_decay_mode=decay)
    update = Update(Problem((Table(16, (3, 200)),), decaying, "fp16", batch=2))
    first = update.table_offsets[0]
    update.before.weights[first + 3] = inf
    after = update.run(triton_interpreter)
    changed = update.expected()[1]["weights"]
    assert after.weights[first + 3] == inf
    assert int((~after.weights[changed].isfinite()).sum()) == 1
    for name in ("momentum1", "momentum2"):
        touched = update.expected()[1].get(name)
        if touched is not None:
            assert getattr(after, name)[touched].isfinite().all()


@pytest.mark.parametrize("uses", [(8, 1), (300, 1)])
@pytest.mark.parametrize(
    ("gradient", "scale", "clip"), [(1e38, 1e30, inf), (3e38, 3e38, 1.0), (1e-35, 1e-37, inf)]
)
def test_gradients_are_unscaled_before_they_are_summed(
    triton_interpreter: Interpreter,
    gradient: float,
    scale: float,
    clip: float,
    uses: tuple[int, ...],
) -> None:
    problem = Problem(
        (Table(40, uses, 64),), SGD, gradient_value=gradient, gradient_scale=scale, clip=clip
    )
    update = Update(problem)
    update.check(update.run(triton_interpreter))
    update.check(update.run_fused(triton_interpreter)[0])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
@pytest.mark.parametrize("found_inf", [0.0, 1.0, nan])
def test_found_inf(triton_interpreter: Interpreter, optimizer: Optimizer, found_inf: float) -> None:
    problem = Problem(TABLES, optimizer, batch=20, found_inf=found_inf, gradient_value=inf)
    problem = problem if found_inf else replace(problem, gradient_value=None)
    update, after = solve(triton_interpreter, problem)
    assert update.before.equals(after) == bool(found_inf)


@pytest.mark.parametrize(
    ("found_inf", "checked", "after"), [(0.0, 1, 8), (1.0, 1, 7), (nan, 1, 7), (1.0, 0, 8)]
)
def test_advance_counters(
    triton_interpreter: Interpreter, found_inf: float, checked: int, after: int
) -> None:
    for counts_steps, stochastic in ((1, 0), (0, 1), (1, 1)):
        counters = torch.tensor([7]), torch.tensor([7])
        flags = (counts_steps, stochastic, checked, 0)
        call = KernelCall(
            "advance_counters", (1, 1), (*counters, torch.tensor([found_inf]), *flags), {}
        )
        step, seed, _ = triton_interpreter.run(call)[0]
        assert step.tolist() == [after if counts_steps else 7]
        assert seed.tolist() == [after if stochastic else 7]


def test_rowwise_adagrad_divides_by_the_dim_not_the_bucket(triton_interpreter: Interpreter) -> None:
    table = Table(9, (1,), aligned=False)
    update = Update(Problem((table,), ROWWISE_ADAGRAD, batch=1, gradient_value=2.0))
    update.before.momentum1[:] = 0.0
    after = update.run(triton_interpreter)
    assert after.momentum1[0] == 4.0


def test_state_of_sgd_is_not_touched(triton_interpreter: Interpreter) -> None:
    update = Update(Problem(TABLES, SGD, batch=20))
    update.before.momentum1[:] = nan
    after = update.run(triton_interpreter)
    update.check(after)
    assert torch.equal(bits(after.momentum1), bits(update.before.momentum1))


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_numbers(triton_interpreter: Interpreter, data: st.DataObject) -> None:
    numbers = st.floats(0.0, 1.0, width=32)
    optimizer = replace(
        data.draw(st.sampled_from(OPTIMIZERS)),
        learning_rate=data.draw(numbers),
        eps=data.draw(st.sampled_from([1e-8, 1e-3, 1.0])),
        weight_decay=data.draw(numbers),
        weight_decay_mode=data.draw(st.sampled_from(["none", "l2", "decoupled"])),
    )
    problem = Problem(
        TABLES,
        optimizer,
        batch=20,
        weighted=data.draw(st.booleans()),
        gradient_scale=data.draw(st.sampled_from([None, 0.5, 7.0])),
        clip=data.draw(st.sampled_from([inf, 0.25])),
        steps_before=data.draw(st.integers(0, 1000)),
        seed=data.draw(st.integers(0, 2**31)),
    )
    solve(triton_interpreter, problem)
