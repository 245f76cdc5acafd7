"""What can be known of a kernel's source without importing it: parameters, and the files it is made of.

A kernel is kernel.py, a ``@triton.jit`` function, or kernel.cu, a function in CUDA C++ (cuda_source.py).
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .cuda_source import CUDA_KERNEL_FILE, cuda_parameters, included_files
from .errors import Problem, SpecError, format_names

COMMON = "common"
KERNEL_FILE = "kernel.py"
Language = Literal["triton", "cuda"]
KERNEL_FILES = (KERNEL_FILE, CUDA_KERNEL_FILE)


def kernel_file(folder: Path) -> Path:
    """The source of the kernel in a folder: kernel.py, or kernel.cu where that is there instead.

    Raises:
        SpecError: the folder has both, and nothing says which one is meant.
    """
    triton, cuda = (folder / name for name in KERNEL_FILES)
    if triton.is_file() and cuda.is_file():
        raise SpecError(
            [Problem(str(folder), CUDA_KERNEL_FILE, None, f"beside {KERNEL_FILE}: one must go")]
        )
    return cuda if cuda.is_file() else triton


def language_of(folder: Path) -> Language:
    """What the kernel in a folder is written in."""
    return "cuda" if kernel_file(folder).name == CUDA_KERNEL_FILE else "triton"


@dataclass(frozen=True)
class KernelParameter:
    """A parameter of the kernel function, in order."""

    name: str
    constexpr: bool


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except FileNotFoundError:
        raise SpecError([Problem(str(path), "file", None, "does not exist")]) from None
    except SyntaxError as error:
        raise SpecError(
            [Problem(str(path), f"line {error.lineno}", None, f"syntax error: {error.msg}")]
        ) from None


def _last_name(node: ast.expr | None) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def kernel_parameters(path: Path, function: str) -> list[KernelParameter]:
    """The parameters of a ``@triton.jit`` function, or of one in CUDA C++ and then its constants.

    Raises:
        SpecError: the file or the function is missing, is not jitted, or has parameters that are not plain.
    """
    if path.name == CUDA_KERNEL_FILE:
        names, constants = cuda_parameters(path, function)
        return [
            *(KernelParameter(name, constexpr=False) for name in names),
            *(KernelParameter(name, constexpr=True) for name in constants),
        ]
    functions = {node.name: node for node in _parse(path).body if isinstance(node, ast.FunctionDef)}
    jitted = [
        name
        for name, node in functions.items()
        if any(_last_name(decorator) == "jit" for decorator in node.decorator_list)
    ]
    if function not in jitted:
        raise SpecError(
            [
                Problem(
                    str(path),
                    "function",
                    function,
                    "no @triton.jit function of that name",
                    format_names(jitted),
                )
            ]
        )
    arguments = functions[function].args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        raise SpecError([Problem(str(path), function, None, "only plain parameters are possible")])
    return [
        KernelParameter(argument.arg, _last_name(argument.annotation) == "constexpr")
        for argument in arguments.args
    ]


def _imported_modules(tree: ast.Module, package: str) -> list[str]:
    """Dotted names of what a file imports; ``from a import b`` may mean the module a.b."""
    modules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".") if node.level else []
            kept = parents[: len(parents) - node.level + 1]
            base = ".".join([*kept, *([node.module] if node.module else [])])
            modules += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return modules


def _files_of_module(specs_dir: Path, module: str) -> list[Path]:
    """The file of a module and those of its parent packages, as far as they exist."""
    parts = module.split(".")
    files = [
        specs_dir.joinpath(*parts[:count], "__init__.py") for count in range(1, len(parts) + 1)
    ]
    files.append(specs_dir.joinpath(*parts).with_suffix(".py"))
    return [file for file in files if file.is_file()]


def source_closure(specs_dir: Path, kernel: str) -> list[Path]:
    """The kernel's file and every file of common/ that it reaches, sorted.

    Raises:
        SpecError: a kernel imports from the folder of specs, but not through common/.
    """
    found: set[Path] = set()
    pending = [kernel_file(specs_dir / kernel)]
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found.add(path)
        if path.suffix != ".py":
            pending += included_files(path, specs_dir, COMMON)
            continue
        package = ".".join(path.parent.relative_to(specs_dir).parts)
        for module in _imported_modules(_parse(path), package):
            top = module.split(".")[0]
            if top == COMMON:
                pending += _files_of_module(specs_dir, module)
            elif (specs_dir / top).is_dir() or (specs_dir / f"{top}.py").is_file():
                raise SpecError(
                    [
                        Problem(
                            str(path),
                            f"import {module}",
                            None,
                            "kernels share code through one package only",
                            COMMON,
                        )
                    ]
                )
    return sorted(found)


def source_sha256(specs_dir: Path, kernel: str) -> str:
    """One hash over the names and the contents of the source closure."""
    digest = hashlib.sha256()
    for path in source_closure(specs_dir, kernel):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(specs_dir).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
