"""Importing triton raises: `PYTHONPATH=wheels/no_triton python ...` proves that an installed wheel does not need it.

A CUDA build of torch brings triton along, so its absence cannot be had by not installing it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class NoTriton:
    """A finder that raises where returning None would let the next finder find triton after all."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse triton and its submodules, leave everything else to the other finders."""
        del path, target
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError("triton is hidden in this environment", name=name)
        return None


sys.meta_path.insert(0, NoTriton)
