"""Who may import whom (docs/architecture.md, "Layers"), read from the sources."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STANDARD = sys.stdlib_module_names | {"__future__"}
# Per layer the modules that it may import besides Python's own and its own.
PYTHON = {
    "kernel_specs": {"triton", "common"},
    "aot_build": {"jinja2", "ninja", "pybind11", "pydantic", "pydantic_core", "rich", "tomli"}
    | {"triton", "typer"},
    "python/tbe_aot": {"torch"},
    "python/tbe_aot_audit": {"pydantic", "rich", "typer"},
}
# Triton takes over a second to import; a build that finds everything done shall not wait for it.
IMPORTS_TRITON = {"aot_build/triton_compiler.py"}
# Per layer of csrc_launcher what it may include of the project, and what of torch and Python.
CPP = {
    "core": (("core/", "tbe_aot_generated.h", "optimizer_table.h"), ()),
    "cpu": (
        ("core/", "cpu/", "optimizer_formulas.h"),
        ("torch/csrc/stable/c/", "torch/headeronly/"),
    ),
    "ops": (
        ("core/", "cpu/", "ops/", "operator_rules.h"),
        ("torch/csrc/stable/", "torch/headeronly/", "torch/csrc/inductor/aoti_torch/c/"),
    ),
    "python": (("core/", "python/"), ("pybind11/",)),
}
FOREIGN = ("torch/", "ATen/", "c10/", "pybind11/", "Python.h", "cuda")


def imported(path: Path) -> Iterator[str]:
    """The packages that a module imports; its own, relatively imported, are left out."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).partition(".")[0]


def sources(folder: str, *patterns: str) -> list[Path]:
    found = [path for pattern in patterns for path in sorted((ROOT / folder).rglob(pattern))]
    assert found
    return found


@pytest.mark.parametrize("layer", PYTHON)
def test_python(layer: str) -> None:
    own = Path(layer).name
    for path in sources(layer, "*.py"):
        strangers = set(imported(path)) - STANDARD - PYTHON[layer] - {own}
        assert not strangers, f"{path.relative_to(ROOT)} imports {strangers}"


def test_triton_is_imported_by_what_compiles_alone() -> None:
    importing = {
        str(path.relative_to(ROOT))
        for path in sources("aot_build", "*.py")
        if "triton" in set(imported(path))
    }
    assert importing == IMPORTS_TRITON


@pytest.mark.parametrize("layer", CPP)
def test_cpp(layer: str) -> None:
    project, foreign = CPP[layer]
    for path in sources(f"csrc_launcher/{layer}", "*.h", "*.cpp"):
        text = path.read_text()
        for name in re.findall(r'#include "([^"]+)"', text):
            assert name.startswith(project), f"{path.relative_to(ROOT)} includes {name}"
        for name in re.findall(r"#include <([^>]+)>", text):
            allowed = name.startswith(foreign) or not name.startswith(FOREIGN)
            assert allowed, f"{path.relative_to(ROOT)} includes {name}"
