"""Compiled and saved models run where triton cannot be imported, on batch sizes that were not traced."""

from __future__ import annotations

import json
from importlib.machinery import PathFinder

import pytest

from tests.gpu.processes import run_program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def compiled(folder):
    """Name -> how compiling ended; the artifacts are in ``folder``."""
    # Not importlib.util.find_spec: this process hides triton.
    if PathFinder.find_spec("triton") is None:
        pytest.skip("Inductor needs triton to compile, and it is not installed")
    output = run_program("models", "compile", str(folder), CUDA_DISABLE_PTX_JIT="0")
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def loaded(folder, compiled):
    """Name -> how loading and running without triton ended."""
    output = run_program("models", "run", str(folder), CUDA_DISABLE_PTX_JIT="1")
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("name", ["compile", "export", "package", "script"])
def test_compiles(name, compiled):
    assert compiled[name] == "right", compiled[name]


@pytest.mark.parametrize("name", ["export", "package", "script"])
def test_runs_without_triton(name, loaded):
    assert loaded[name] == "right", loaded[name]
