"""Updates with stochastic rounding through the operator, on any device: what they make of known numbers."""

from __future__ import annotations

from typing import Any

import torch

import tbe_aot
from tests.rounding import rounded

NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
# Exponents of the distance from 1.5 to the next number.
STEP = {torch.float16: -10, torch.bfloat16: -7}


def update_of(
    tables: list[tbe_aot.TableSpec],
    weights: torch.Tensor,
    indices: torch.Tensor,
    gradient: float,
    **arguments: Any,
) -> None:
    """One step of SGD of rate 1: each lookup of ``indices`` [T, B] subtracts ``gradient`` from its row of ``weights``."""
    device = weights.device
    metadata = tbe_aot.make_features(tables, weights_dtype=weights.dtype, device=device)
    batch = indices.shape[1]
    torch.ops.tbe_aot.backward_update(
        torch.full((batch, sum(metadata.feature_dims)), gradient, device=device),
        weights,
        metadata.features,
        metadata.layout,
        indices.flatten().to(device),
        torch.arange(indices.numel() + 1, device=device),
        "sgd",
        torch.ones(1, device=device),
        **arguments,
    )


def wrong_elements(device: torch.device, dtype: torch.dtype, seed: int) -> list[str]:
    """Elements of two tables, with short and long runs, that are not what the reference makes of their exact values."""
    tables = [tbe_aot.TableSpec("narrow", 40, 20), tbe_aot.TableSpec("wide", 9, 136)]
    metadata = tbe_aot.make_features(tables, weights_dtype=dtype)
    generator = torch.Generator().manual_seed(3)
    before = torch.randint(-64, 64, (metadata.weights_numel,), generator=generator) / 64
    indices = torch.stack(
        [torch.randint(-1, spec.rows, (500,), generator=generator) for spec in tables]
    )
    indices[:, :300] = indices[:, :1].clamp(min=2)
    weights = before.to(device, dtype)
    state = torch.tensor([seed], device=device)
    gradient = 2.0**-13
    update_of(tables, weights, indices, gradient, rounding_seed=state)
    after = weights.double().cpu()
    # 1 more, in int64.
    next_seed = (seed + 1 + 2**63) % 2**64 - 2**63
    wrong = [] if state.item() == next_seed else [f"seed {seed} became {state.item()}"]
    for t, spec in enumerate(tables):
        uses = torch.bincount(indices[t][indices[t] >= 0], minlength=spec.rows).tolist()
        first, pitch = metadata.table_offsets[t], metadata.row_pitches[t]
        for row, used in enumerate(uses):
            for column in range(spec.dim):
                element = first + row * pitch + column
                exact = before[element].item() - used * gradient
                number = metadata.first_global_rows[t] + row
                if used:
                    exact = rounded(exact, next_seed, number, column, NAMES[dtype])
                if after[element].item() != exact:
                    wrong.append(f"{spec.name}[{row}, {column}] after {used} lookups")
    return wrong


def moved_up(
    device: torch.device,
    dtype: torch.dtype,
    share: float,
    seed: int,
    rows: int = 2000,
    dim: int = 64,
) -> torch.Tensor:
    """bool [rows, dim]: which elements of a table of 1.5 became the next number, after a step of ``share`` of the way."""
    table = tbe_aot.TableSpec("table", rows, dim)
    weights = torch.full((rows * dim,), 1.5, dtype=dtype, device=device)
    step = 2.0 ** STEP[dtype]
    update_of(
        [table],
        weights,
        torch.arange(rows)[None],
        -share * step,
        rounding_seed=torch.tensor([seed], device=device),
    )
    steps = (weights.double().cpu().view(rows, dim) - 1.5) / step
    assert set(steps.unique().tolist()) <= {0.0, 1.0}, "not one of the two neighbours"
    return steps == 1.0


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """Of two bool tensors of one shape."""
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    return float((a * b).mean() / (a.square().mean() * b.square().mean()).sqrt())


def faults(device: torch.device, dtype: torch.dtype) -> list[str]:
    """What is wrong with the shares and the independence of the random numbers."""
    found = []
    moves = {}
    for share in (1 / 128, 0.25, 0.5, 0.875):
        moves[share] = moved_up(device, dtype, share, seed=17)
        # 1 % of the way is ten standard deviations and more of this mean; the seed is fixed.
        error = abs(moves[share].double().mean().item() - share)
        if error > 0.004:
            found.append(f"{share} of the way moves {share + error} of the elements")
    half = moves[0.5]
    pairs = {
        "columns of a word": (half[:, 0::2], half[:, 1::2]),
        "neighbouring words": (half[:, :-2], half[:, 2:]),
        "far columns": (half[:, :32], half[:, 32:]),
        "neighbouring rows": (half[:-1], half[1:]),
        "far rows": (half[:1000], half[1000:]),
        "steps": (half, moved_up(device, dtype, 0.5, seed=18)),
    }
    # Four standard deviations for the fewest elements.
    found += [name for name, (a, b) in pairs.items() if abs(correlation(a, b)) > 4 / 64_000**0.5]
    if not torch.equal(half, moved_up(device, dtype, 0.5, seed=17)):
        found.append("equal seeds give other bits")
    if moved_up(device, dtype, 0.0, seed=17).any():
        found.append("a number of the dtype moved")
    return found
