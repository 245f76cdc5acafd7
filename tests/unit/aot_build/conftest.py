from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

from aot_build.build import BuildResult, build
from tests.unit.aot_build.toy_specs import ARCHS, TOY, copy_toy


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """The toy specs, to change."""
    return copy_toy(tmp_path / "specs")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cubin cache for all tests, and for all processes of a parallel run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cubins"


@pytest.fixture(scope="session")
def toy_build(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> BuildResult:
    """A finished full build of the toy specs."""
    out = tmp_path_factory.mktemp("toy") / "out"
    return build(TOY, "full", ARCHS, out, cache=shared_cache, console=Console(quiet=True))
