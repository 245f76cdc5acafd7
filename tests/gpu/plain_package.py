"""Loads and runs the package of a model that knows nothing of tbe_aot (``FOLDER``). Run as a program."""

from __future__ import annotations

import sys
from pathlib import Path

sys.modules["triton"] = None  # type: ignore[assignment]  # None hides a module

import torch  # noqa: E402  after triton is hidden

model = torch._inductor.aoti_load_package(str(Path(sys.argv[1], "plain.pt2")))
ones = torch.ones(8, 8, device="cuda")
assert torch.equal(model(ones), 3 * ones)
