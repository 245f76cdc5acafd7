"""Stochastic rounding by the CPU operator and the module."""

from __future__ import annotations

import pytest
import torch

import tbe_aot
from tests.stochastic import NAMES, faults, update_of, wrong_elements

CPU = torch.device("cpu")
TABLE = [tbe_aot.TableSpec("table", 8, 16)]
SEEDS = [0, 5, -1, 2**32 - 1, 2**63 - 1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", NAMES)
def test_every_element_is_the_one_of_the_reference(dtype: torch.dtype, seed: int) -> None:
    assert wrong_elements(CPU, dtype, seed) == []


@pytest.mark.parametrize("dtype", NAMES)
def test_unbiased_and_independent(dtype: torch.dtype) -> None:
    assert faults(CPU, dtype) == []


@pytest.mark.parametrize("dtype", [torch.float32, *NAMES])
@pytest.mark.parametrize("absent", [None, torch.empty(0, dtype=torch.int64)])
def test_without_a_seed_rows_are_rounded_to_the_nearest(
    dtype: torch.dtype, absent: torch.Tensor | None
) -> None:
    start = torch.linspace(-2, 2, 128)
    weights = start.to(dtype, copy=True)
    update_of(TABLE, weights, torch.arange(8)[None], 1e-3, rounding_seed=absent)
    expected = (start.to(dtype).float() - 1e-3).to(dtype)
    assert torch.equal(weights, expected)


def test_fp32_rows_are_not_affected_but_the_seed_counts() -> None:
    start = torch.linspace(-2, 2, 128)
    weights, seed = start.clone(), torch.tensor([9])
    update_of(TABLE, weights, torch.arange(8)[None], 1e-3, rounding_seed=seed)
    assert torch.equal(weights, start - 1e-3)
    assert seed.item() == 10


def test_found_inf_leaves_the_seed() -> None:
    weights, seed = torch.ones(128, dtype=torch.bfloat16), torch.tensor([9])
    found = torch.ones(1)
    update_of(TABLE, weights, torch.arange(8)[None], 1e-3, rounding_seed=seed, found_inf=found)
    assert seed.item() == 9
    assert (weights == 1).all()


@pytest.mark.parametrize("dtype", NAMES)
def test_nan_stays(dtype: torch.dtype) -> None:
    weights = torch.full((128,), torch.nan, dtype=dtype)
    update_of(TABLE, weights, torch.arange(8)[None], 1e-3, rounding_seed=torch.tensor([1]))
    assert weights.isnan().all()


@pytest.mark.parametrize("dtype", NAMES)
def test_what_is_too_large_becomes_infinite(dtype: torch.dtype) -> None:
    weights = torch.ones(128, dtype=dtype)
    huge = -3e38 if dtype == torch.float16 else -torch.inf
    update_of(TABLE, weights, torch.arange(8)[None], huge, rounding_seed=torch.tensor([1]))
    assert (weights == torch.inf).all()


def test_a_seed_of_two_elements_is_refused_before_anything_changes() -> None:
    weights = torch.ones(128, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="rounding_seed has 2 elements, expected 1"):
        update_of(TABLE, weights, torch.arange(8)[None], 1.0, rounding_seed=torch.tensor([1, 2]))
    assert (weights == 1).all()


def make_module() -> tbe_aot.TableBatchedEmbeddingBags:
    torch.manual_seed(0)
    return tbe_aot.TableBatchedEmbeddingBags(
        [tbe_aot.TableSpec("a", 50, 24)],
        weights_dtype=torch.bfloat16,
        optimizer=tbe_aot.RowwiseAdagrad(lr=0.01),
        stochastic_rounding=True,
    )


def train(bags: tbe_aot.TableBatchedEmbeddingBags, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        indices = torch.randint(0, 50, (40,), generator=generator)
        bags(indices, torch.arange(0, 41, 4)).square().sum().backward()


def test_a_module_goes_on_from_its_state_to_the_bit() -> None:
    whole = make_module()
    train(whole, range(6))
    first = make_module()
    train(first, range(3))
    saved = {key: value.clone() for key, value in first.state_dict().items()}
    assert "rounding_seed" in saved
    second = make_module()
    train(second, range(2))
    second.load_state_dict(saved)
    train(second, range(3, 6))
    assert torch.equal(second.table("a"), whole.table("a"))
    assert torch.equal(second.rounding_seed, whole.rounding_seed)


def test_modules_draw_their_seeds_from_torchs_generator() -> None:
    one, other = make_module(), make_module()
    assert torch.equal(one.rounding_seed, other.rounding_seed)
    other.reset_parameters()
    assert not torch.equal(one.rounding_seed, other.rounding_seed)


def test_small_steps_move_the_mean_only_with_stochastic_rounding() -> None:
    table = [tbe_aot.TableSpec("table", 200, 16)]
    weights = torch.ones(3200, dtype=torch.bfloat16)
    nearest, seed = weights.clone(), torch.tensor([0])
    for _ in range(64):
        # An eighth of the distance to the next number above 1.
        update_of(table, weights, torch.arange(200)[None], -(2.0**-10), rounding_seed=seed)
        update_of(table, nearest, torch.arange(200)[None], -(2.0**-10))
    assert (nearest == 1).all()
    assert abs(weights.double().mean().item() - (1 + 64 * 2.0**-10)) < 1e-3
