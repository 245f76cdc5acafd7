"""Every test in this folder is for a CUDA device; without one it is skipped.

Run them in a process of their own, ``python -m pytest -m gpu -o pythonpath=. tests/gpu``: then triton cannot be imported
and the driver may not compile PTX, so that only what the wheel carries can run. ``-o pythonpath=.`` tests the installed
wheel instead of the tree's own package. TBE_AOT_REPORT_DIR names a folder for the table of errors.

TBE_AOT_REHEARSE=1 tries the tests themselves where there is no device: those that ask for ``device`` rather than for
``cuda`` run on the CPU's operators.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

HERE = Path(__file__).parent
REHEARSAL = os.environ.get("TBE_AOT_REHEARSE") == "1"


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") == "gpu":
        os.environ.setdefault("CUDA_DISABLE_PTX_JIT", "1")
        if "triton" not in sys.modules:
            # From here on `import triton` raises ModuleNotFoundError.
            sys.modules["triton"] = None  # type: ignore[assignment]  # None hides a module


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    no_device = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        rehearsed = REHEARSAL and "device" in getattr(item, "fixturenames", ())
        if not torch.cuda.is_available() and not rehearsed:
            item.add_marker(no_device)


@pytest.fixture(scope="session")
def report_folder() -> Path | None:
    """Where tests leave what they measured, if anywhere."""
    folder = os.environ.get("TBE_AOT_REPORT_DIR")
    if not folder:
        return None
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def cuda() -> torch.device:
    """The device under test."""
    import torch

    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def device() -> torch.device:
    """The CUDA device under test; in a rehearsal without one, the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
