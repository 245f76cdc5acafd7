"""What can be known of a kernel in CUDA C++ without compiling it: parameters, and the files it is made of.

kernel.cu has one ``extern "C" __global__`` function. Its run-time parameters have the names of the spec, and two unnamed
``void*`` follow them, as Triton appends them to its kernels: one launcher serves both. Constants arrive as macros and
become names of C++ in lines such as ``constexpr int kTile = TILE;``, which is how the build knows them.
"""

from __future__ import annotations

import re
from pathlib import Path

from .errors import Problem, SpecError, format_names

CUDA_KERNEL_FILE = "kernel.cu"
# An option of the launch that every kernel in CUDA C++ may read.
WARPS_MACRO = "NUM_WARPS"
_FUNCTION = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\s*\(([^)]*)\)'
)
_CONSTANT = re.compile(r"^constexpr\s+\w+\s+k\w+\s*=\s*([A-Z][A-Z0-9_]*)\s*;", re.MULTILINE)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_UNNAMED = re.compile(r"void\s*\*")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError([Problem(str(path), "file", None, "does not exist")]) from None


def cuda_parameters(path: Path, function: str) -> tuple[list[str], list[str]]:
    """Run-time parameters and constants of a kernel, each in order.

    Raises:
        SpecError: the file or the function is missing, or the two pointers at its end are.
    """
    text = _COMMENT.sub("", _read(path))
    functions = {
        match.group(1): [part.strip() for part in match.group(2).split(",")]
        for match in _FUNCTION.finditer(text)
    }
    if function not in functions:
        raise SpecError(
            [
                Problem(
                    str(path),
                    "function",
                    function,
                    'no extern "C" __global__ function of that name',
                    format_names(functions),
                )
            ]
        )
    declared = functions[function]
    if len(declared) < 2 or not all(_UNNAMED.fullmatch(part) for part in declared[-2:]):
        raise SpecError(
            [Problem(str(path), function, None, "its last two parameters must be unnamed void*")]
        )
    names = [re.split(r"[\s*&]+", part)[-1] for part in declared[:-2]]
    constants = [name for name in _CONSTANT.findall(text) if name != WARPS_MACRO]
    return names, list(dict.fromkeys(constants))


def included_files(path: Path, specs_dir: Path, common: str) -> list[Path]:
    """The files of the folder of specs that a file includes by name.

    Raises:
        SpecError: it includes something that is not in ``common/``.
    """
    files = []
    for name in _INCLUDE.findall(_read(path)):
        if name.split("/")[0] != common or not (specs_dir / name).is_file():
            raise SpecError(
                [
                    Problem(
                        str(path),
                        f'#include "{name}"',
                        None,
                        "kernels include files of one folder only",
                        f"{common}/...",
                    )
                ]
            )
        files.append(specs_dir / name)
    return files
