"""Compiled and saved models run where triton cannot be imported, on batch sizes that were not traced."""

from __future__ import annotations

import json
import signal
from importlib.machinery import PathFinder

import pytest

from tests.gpu.processes import run_program, start_program

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


@pytest.mark.parametrize("name", ["compile", "export", "package", "script"])
def test_compiles(name, compiled):
    assert compiled[name] == "right", compiled[name]


@pytest.mark.parametrize("name", ["export", "package", "script"])
def test_runs_without_triton(name, folder, compiled):
    if name == "package":
        # A package of a pointwise model, loaded without tbe_aot: what this says of torch is not said of us.
        plain = start_program("plain_package", str(folder), CUDA_DISABLE_PTX_JIT="1")
        if plain.returncode == -signal.SIGSEGV:
            pytest.skip("this torch crashes while it loads any AOTInductor package for CUDA")
        assert plain.returncode == 0, plain.stdout + plain.stderr
    output = run_program("models", "run", str(folder), name, CUDA_DISABLE_PTX_JIT="1")
    ended = json.loads(output.splitlines()[-1])
    assert ended == {name: "right"}, ended[name]
