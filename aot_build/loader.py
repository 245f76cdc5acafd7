"""Importing a kernel from a folder of specs, for the compiler and for Triton's interpreter alike.

A kernel says ``from common.features import load_feature``: the folder of specs is on ``sys.path`` while its
kernel.py is imported, and ``common`` means that folder's.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from .errors import BuildError
from .kernel_source import COMMON, KERNEL_FILE, kernel_file
from .spec import load_spec


def _forget_other_common(specs_dir: Path) -> None:
    """Drop a ``common`` that belongs to another folder of specs; functions already built keep theirs."""
    loaded = sys.modules.get(COMMON)
    if loaded is None:
        return
    places = [Path(place).resolve() for place in getattr(loaded, "__path__", [])]
    if specs_dir / COMMON not in places:
        for name in [name for name in sys.modules if name.split(".")[0] == COMMON]:
            del sys.modules[name]


def load_function(specs_dir: Path, kernel: str, function: str) -> Any:
    """Import ``<specs_dir>/<kernel>/kernel.py`` anew and return one of its functions.

    Under ``TRITON_INTERPRET=1`` (set before triton is imported) the function runs on the CPU.
    """
    specs_dir = specs_dir.resolve()
    path = kernel_file(specs_dir / kernel)
    if path.name != KERNEL_FILE:
        raise BuildError(f"{path}: Python cannot import a kernel in CUDA C++")
    _forget_other_common(specs_dir)
    # No path in the name: it may reach symbols, and cubins must not depend on folders.
    module_spec = importlib.util.spec_from_file_location(f"_aot_kernel_{kernel}", path)
    if module_spec is None or module_spec.loader is None:
        raise BuildError(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(module_spec)
    sys.path.insert(0, str(specs_dir))
    # A compiler that leaves files beside its sources would dirty a read-only or shared tree.
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        module_spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes_bytecode
        sys.path.remove(str(specs_dir))
    return getattr(module, function)


def load_kernel(specs_dir: Path | str, kernel: str) -> Any:
    """The ``@triton.jit`` function of a kernel, by the kernel's name."""
    specs_dir = Path(specs_dir)
    spec = load_spec(specs_dir / kernel)
    return load_function(specs_dir, kernel, spec.kernel.function)
