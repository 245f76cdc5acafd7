"""Compiled and saved models run where triton cannot be imported."""

from __future__ import annotations

from importlib.machinery import PathFinder

import pytest

from tests.gpu.processes import run_program


@pytest.mark.slow
def test_models_compiled_beforehand_run_without_triton(tmp_path):
    # Not importlib.util.find_spec: this process hides triton.
    if PathFinder.find_spec("triton") is None:
        pytest.skip("Inductor needs triton to compile, and it is not installed")
    run_program("models", "compile", str(tmp_path), CUDA_DISABLE_PTX_JIT="0")
    output = run_program("models", "run", str(tmp_path), CUDA_DISABLE_PTX_JIT="1")
    assert output.count("right:") == 3
