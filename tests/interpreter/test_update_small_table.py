"""update_small_table in Triton's interpreter against the float64 oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from tests.interpreter.harness import Interpreter, KernelCall, constants_of
from tests.interpreter.updates import ADAM, DTYPES, OPTIMIZERS, ROWWISE_ADAGRAD, SGD, bits
from tests.oracle import Optimizer
from tests.rounding import rounded

FIRST_ROW = 5  # Global rows and elements of other tables, before this one.
FIRST_ELEMENT = 48
WEIGHT_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 1e-2}


@dataclass(frozen=True)
class Problem:
    """A table of which ``uses[r]`` chunks have row r."""

    uses: tuple[int, ...] = (3, 0, 1, 7)
    chunks: int = 7
    dim: int = 64
    optimizer: Optimizer = ROWWISE_ADAGRAD
    weight_dtype: str = "fp16"
    found_inf: float | None = None
    rounding_seed: int | None = None
    overlap: int = 0

    @property
    def pitch(self) -> int:
        """Elements between rows."""
        return -(-self.dim // 8) * 8

    @property
    def bucket(self) -> int:
        """Columns of a partial sum."""
        return 64 if self.dim <= 64 else 128


@dataclass
class Tensors:
    """What the launch changes, and what it adds up."""

    weights: torch.Tensor
    momentum1: torch.Tensor
    momentum2: torch.Tensor
    partials: torch.Tensor
    used: torch.Tensor


def draw(problem: Problem) -> Tensors:
    generator = torch.Generator().manual_seed(problem.dim)
    rows = len(problem.uses)
    elements = FIRST_ELEMENT + rows * problem.pitch + 40
    state = elements if problem.optimizer.name in {"adagrad", "adam"} else FIRST_ROW + rows + 3
    used = torch.zeros(rows, problem.chunks, dtype=torch.int32)
    for row, uses in enumerate(problem.uses):
        used[row, torch.randperm(problem.chunks, generator=generator)[:uses]] = 1
    partials = torch.randn(rows, problem.chunks, problem.bucket, generator=generator)
    partials *= used[:, :, None]
    # What is past the dim is in no gradient.
    partials[:, :, problem.dim :] = torch.nan
    return Tensors(
        torch.randn(elements, generator=generator).to(DTYPES[problem.weight_dtype]),
        torch.rand(state, generator=generator),
        torch.rand(state, generator=generator),
        partials,
        used,
    )


def run(interpreter: Interpreter, problem: Problem) -> tuple[Tensors, Tensors]:
    """The tensors before and after the launch."""
    before, optimizer, rows = draw(problem), problem.optimizer, len(problem.uses)
    decay = {optimizer.weight_decay_mode: optimizer.weight_decay}
    formula = optimizer.name if optimizer.name in {"adagrad", "adam"} else "rowwise"
    features = [0, FIRST_ELEMENT, problem.pitch, problem.dim, rows, 0, 0, FIRST_ROW]
    call = KernelCall(
        "update_small_table",
        (rows, 1),
        (
            before.weights.clone(),
            before.partials,
            before.used,
            before.momentum1.clone(),
            before.momentum2.clone(),
            torch.tensor([optimizer.learning_rate]),
            torch.tensor([4]),
            torch.tensor([torch.nan if problem.found_inf is None else problem.found_inf]),
            torch.tensor([problem.rounding_seed or 0]),
            torch.tensor([features]),
            problem.chunks,
            optimizer.eps,
            optimizer.beta1,
            optimizer.beta2,
            decay.get("l2", 0.0),
            decay.get("decoupled", 0.0),
            int(optimizer.name == "rowwise_adagrad"),
            int(problem.found_inf is not None),
            int(problem.rounding_seed is not None),
            problem.overlap,
        ),
        constants_of(
            "update_small_table",
            weight_dtype=problem.weight_dtype,
            bucket=problem.bucket,
            optimizer=formula,
        ),
    )
    weights, partials, used, momentum1, momentum2, *_ = interpreter.run(call)[0]
    return before, Tensors(weights, momentum1, momentum2, partials, used)


def check(interpreter: Interpreter, problem: Problem) -> tuple[Tensors, Tensors]:
    before, after = run(interpreter, problem)
    per_weight = problem.optimizer.name in {"adagrad", "adam"}
    untouched = {name: bits(getattr(after, name)).clone() for name in ("weights",)}["weights"]
    expected = bits(before.weights).clone()
    moments = [
        (getattr(before, name), getattr(after, name), bits(getattr(before, name)).clone())
        for name in ("momentum1", "momentum2")
    ]
    stopped = problem.found_inf is not None and problem.found_inf != 0
    for row, uses in enumerate(problem.uses):
        if uses == 0 or stopped:
            continue
        start = FIRST_ELEMENT + row * problem.pitch
        elements = slice(start, start + problem.dim)
        place = elements if per_weight else slice(FIRST_ROW + row, FIRST_ROW + row + 1)
        gradient = before.partials[row, :, : problem.dim].double().sum(0)
        state = {
            "momentum1": before.momentum1[place].double().clone(),
            "momentum2": before.momentum2[place].double().clone(),
        }
        changed = problem.optimizer.step(before.weights[elements].double(), gradient, state, 4)
        actual = after.weights[elements]
        tolerance = WEIGHT_TOLERANCE[actual.dtype]
        assert torch.allclose(actual.double(), changed, rtol=tolerance, atol=tolerance)
        expected[elements] = untouched[elements]
        names = {"sgd": [], "adam": ["momentum1", "momentum2"]}
        for name in names.get(problem.optimizer.name, ["momentum1"]):
            moment = moments[int(name[-1]) - 1]
            assert torch.allclose(moment[1][place].double(), state[name], rtol=1e-4, atol=1e-4)
            moment[2][place] = bits(moment[1])[place]
    # Rows that no chunk used, and everything around the table, keep their bits.
    assert torch.equal(untouched, expected)
    assert all(torch.equal(bits(now), kept) for _, now, kept in moments)
    return before, after


@pytest.mark.parametrize("weight_dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
@pytest.mark.parametrize("dim", [64, 65, 100, 127, 128])
def test_dims_and_optimizers(
    triton_interpreter: Interpreter, dim: int, optimizer: Optimizer, weight_dtype: str
) -> None:
    check(triton_interpreter, Problem(dim=dim, optimizer=optimizer, weight_dtype=weight_dtype))


@pytest.mark.parametrize("chunks", [1, 2, 31, 32, 33, 64, 128])
def test_every_number_of_chunks(triton_interpreter: Interpreter, chunks: int) -> None:
    problem = Problem((chunks, 0, 1), chunks, overlap=chunks % 4)
    before, after = check(triton_interpreter, problem)
    assert not torch.equal(before.weights, after.weights)


@pytest.mark.parametrize("mode", ["l2", "decoupled"])
def test_decay(triton_interpreter: Interpreter, mode: str) -> None:
    for optimizer in (SGD, ROWWISE_ADAGRAD, ADAM):
        decaying = replace(optimizer, weight_decay=0.3, weight_decay_mode=mode)
        check(triton_interpreter, Problem(optimizer=decaying))


def test_a_used_row_without_gradient_still_gets_its_step(triton_interpreter: Interpreter) -> None:
    decaying = replace(SGD, weight_decay=0.5, weight_decay_mode="decoupled")
    problem = Problem((1, 0), 1, optimizer=decaying)
    before, after = check(triton_interpreter, problem)
    assert not torch.equal(before.weights, after.weights)


@pytest.mark.parametrize("found_inf", [None, 0.0, 1.0])
def test_found_inf(triton_interpreter: Interpreter, found_inf: float | None) -> None:
    before, after = check(triton_interpreter, Problem(found_inf=found_inf))
    assert torch.equal(before.weights, after.weights) == (found_inf == 1.0)


@pytest.mark.parametrize("seed", [1, 2**40 + 3])
def test_rounding_by_chance(triton_interpreter: Interpreter, seed: int) -> None:
    """To the bits of the reference: by global row, as the general kernels round."""
    problem = Problem((1, 0, 1), 1, optimizer=SGD, rounding_seed=seed)
    before, after = check(triton_interpreter, problem)
    nearest = run(triton_interpreter, replace(problem, rounding_seed=None))[1]
    assert not torch.equal(after.weights, nearest.weights)
    for row in (0, 2):
        start = FIRST_ELEMENT + row * problem.pitch
        elements = slice(start, start + problem.dim)
        step = SGD.learning_rate * before.partials[row, 0, : problem.dim]
        values = before.weights[elements].float() - step
        expected = [
            rounded(value, seed, FIRST_ROW + row, column, "fp16")
            for column, value in enumerate(values.tolist())
        ]
        assert after.weights[elements].tolist() == expected
