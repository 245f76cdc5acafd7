from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

from aot_build.build import build
from tests.audit.making import Files, compile_library, package_files, write_wheel
from tests.unit.aot_build.toy_specs import ARCHS, TOY


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy kernels' cubins, shared with the tests of the build."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cubins"


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A full build of the toy kernels."""
    out = tmp_path_factory.mktemp("audit") / "artifacts"
    return build(TOY, "full", ARCHS, out, cache=cache, console=Console(quiet=True)).out


@pytest.fixture(scope="session")
def library(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_library(artifacts / "generated", tmp_path_factory.mktemp("lib") / "lib.so")


@pytest.fixture(scope="session")
def files(artifacts: Path, library: bytes) -> Files:
    """What a wheel of the toy kernels holds; tests change copies."""
    return package_files(artifacts, library)


@pytest.fixture
def wheel(files: Files, tmp_path: Path) -> Path:
    return write_wheel(tmp_path / "tbe_aot-1.0-cp311-cp311-linux_x86_64.whl", files)
