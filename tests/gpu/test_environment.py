"""The GPU tests run without triton and without the driver's PTX compiler, or they would prove less than they say."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
import torch


def test_triton_cannot_be_imported(pytestconfig):
    if pytestconfig.getoption("markexpr") != "gpu":
        pytest.skip("triton is hidden in a run of its own: pytest -m gpu")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("triton.language")


def test_the_driver_compiles_no_ptx(pytestconfig):
    if pytestconfig.getoption("markexpr") != "gpu":
        pytest.skip("set in a run of its own: pytest -m gpu")
    assert os.environ["CUDA_DISABLE_PTX_JIT"] == "1"


def test_torch_loads_no_other_copy_of_the_operators():
    assert torch.ops.tbe_aot.forward.default is not None
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    libraries = {line.split()[-1] for line in maps if line.endswith("libtbe_aot.so")}
    assert len(libraries) == 1
