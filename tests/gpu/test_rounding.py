"""Stochastic rounding by the kernels: the bits of the reference, which are the CPU operator's too."""

from __future__ import annotations

import pytest
import torch

from tests.stochastic import NAMES, faults, wrong_elements

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", [0, -1, 2**32 - 1, 2**63 - 1])
@pytest.mark.parametrize("dtype", NAMES)
def test_every_element_is_the_one_of_the_reference(
    device: torch.device, dtype: torch.dtype, seed: int
) -> None:
    assert wrong_elements(device, dtype, seed) == []


@pytest.mark.parametrize("dtype", NAMES)
def test_unbiased_and_independent(device: torch.device, dtype: torch.dtype) -> None:
    assert faults(device, dtype) == []
