"""Every test in this folder needs a CUDA device; without one it is skipped.

Run them in a process of their own, ``python -m pytest -m gpu -o pythonpath=. tests/gpu``: then triton cannot be imported
and the driver may not compile PTX, so that only what the wheel carries can run. ``-o pythonpath=.`` tests the installed
wheel instead of the tree's own package. TBE_AOT_REPORT_DIR names a folder for the table of errors.
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


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") == "gpu":
        os.environ.setdefault("CUDA_DISABLE_PTX_JIT", "1")
        if "triton" not in sys.modules:
            # From here on `import triton` raises ModuleNotFoundError.
            sys.modules["triton"] = None  # type: ignore[assignment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    no_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
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
