"""Stochastic rounding in Triton's interpreter, to the bits of the reference; and as the updates use it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from tests.interpreter.harness import SPECS, Interpreter
from tests.interpreter.updates import Problem, Table, Update
from tests.oracle import Optimizer
from tests.rounding import rounded

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
EDGES = [
    0.0,
    -0.0,
    1.0,
    65504.0,
    65519.0,
    65530.0,
    -65535.0,
    1e5,
    6.1e-5,
    6e-5,
    3e-8,
    -2e-8,
    1e-9,
    3.3e38,
    3.4e38,
]


def edge_values(rows: int, columns: int) -> torch.Tensor:
    """fp32 [rows, columns] of every size, the edges among them."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(rows, columns, generator=generator)
    values *= 2.0 ** torch.randint(-30, 18, (rows, columns), generator=generator)
    values[0, : len(EDGES)] = torch.tensor(EDGES)
    values[1, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    return values


def round_all(
    values: torch.Tensor, rows: torch.Tensor, seed: torch.Tensor, dtype: str
) -> torch.Tensor:
    """What the kernels' function makes of them."""
    sys.path.insert(0, str(SPECS))
    import triton.language as tl

    from tests.interpreter.rounding_kernel import rounding_kernel

    result = torch.empty(values.shape, dtype=DTYPES[dtype])
    triton_dtype = {"fp16": tl.float16, "bf16": tl.bfloat16}[dtype]
    rounding_kernel[(1,)](values, rows, seed, result, *values.shape, DTYPE=triton_dtype)
    return result


@pytest.mark.parametrize("seed", [0, 1, -1, 2**32, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_of_the_reference(triton_interpreter: Interpreter, dtype: str, seed: int) -> None:
    values, rows = edge_values(8, 32), torch.tensor([0, 1, 2, 3, 2**31, 2**32, 2**40 + 3, 77])
    result = triton_interpreter.call(round_all, values, rows, torch.tensor([seed]), dtype)
    expected = [
        [
            rounded(values[i, column].item(), seed, row, column, dtype)
            for column in range(values.shape[1])
        ]
        for i, row in enumerate(rows.tolist())
    ]
    torch.testing.assert_close(
        result.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=0, equal_nan=True
    )


def of_both_lengths(dtype: str, seed: int | None, dim: int) -> Problem:
    """Rows with short and with long runs, from a gradient that fp32 adds without error; SGD of rate 1."""
    return Problem(
        (Table(dim, (1, 0, 2, 300, 1, 129), aligned=dim % 8 == 0),),
        Optimizer("sgd", learning_rate=1.0),
        weight_dtype=dtype,
        batch=8,
        gradient_value=2.0**-13,
        rounding_seed=seed,
    )


@pytest.mark.parametrize("dim", [16, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_updates_round_rows_by_their_number(
    triton_interpreter: Interpreter, dtype: str, dim: int
) -> None:
    seed = 11
    update = Update(of_both_lengths(dtype, seed, dim))
    update.before.weights.copy_((torch.arange(update.before.weights.numel()) % 64 - 32) / 64)
    after = update.run(triton_interpreter)
    uses = torch.tensor(update.problem.tables[0].uses)
    pitch, first_row = update.problem.tables[0].pitch, update.first_rows[0]
    for row, used in enumerate(uses.tolist()):
        for column in range(dim):
            element = update.table_offsets[0] + row * pitch + column
            before = update.before.weights[element].item()
            exact = before - used * 2.0**-13
            expected = rounded(exact, seed + 1, first_row + row, column, dtype) if used else before
            assert after.weights[element].item() == expected, (row, column)


def test_rows_are_rounded_alike_in_any_tile(triton_interpreter: Interpreter) -> None:
    update = Update(of_both_lengths("bf16", 5, 16))
    after = update.run(triton_interpreter)
    assert update.run(triton_interpreter, update.transposed().shuffled(1)).equals(after)
    other = Update(replace(update.problem, rounding_seed=6))
    other.before = update.before
    assert not other.run(triton_interpreter).equals(after)
    nearest = Update(replace(update.problem, rounding_seed=None))
    nearest.before = update.before
    assert not nearest.run(triton_interpreter).equals(after)


def test_fp32_rows_are_not_rounded(triton_interpreter: Interpreter) -> None:
    update = Update(of_both_lengths("fp32", 5, 16))
    nearest = Update(replace(update.problem, rounding_seed=None))
    nearest.before = update.before
    assert update.run(triton_interpreter).equals(nearest.run(triton_interpreter))
