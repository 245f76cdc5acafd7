"""Triton's wheel as a toolchain: where its tools are and which versions they have, without importing it."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
import subprocess
from pathlib import Path

from .archs import Arch
from .errors import BuildError

# What Triton is told besides each variant's own options: settings of its environment and an option. The manifest records them.
# Line info would put absolute paths into the cubin.
TRITON_ENVIRONMENT = {"TRITON_DISABLE_LINE_INFO": "1"}
TRITON_OPTIONS = {"num_ctas": 1}
TRITON_FLAGS = tuple(
    f"{name}={value}" for name, value in (TRITON_ENVIRONMENT | TRITON_OPTIONS).items()
)
# The same for kernels in CUDA C++; NVRTC compiles them to PTX, and the arch's own ptxas assembles it.
NVRTC_FLAGS = ("--std=c++17", "--fmad=true")


@functools.cache
def triton_tools() -> Path:
    """The folder of ptxas, cuobjdump and nvdisasm."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        raise BuildError("triton is not installed: it is the compiler of this build")
    return Path(found.origin).parent / "backends" / "nvidia" / "bin"


def tool(name: str) -> Path:
    """The path of one of the tools."""
    path = triton_tools() / name
    if not path.is_file():
        raise BuildError(f"Triton's wheel holds no {name}: {path} does not exist")
    return path


@functools.cache
def triton_version() -> str:
    """The version of the installed Triton."""
    return importlib.metadata.version("triton")


@functools.cache
def nvrtc_library() -> Path:
    """NVRTC, the compiler of CUDA C++, from its wheel: a library, no toolkit and no host compiler."""
    found = importlib.util.find_spec("nvidia.cuda_nvrtc") if _has_package("nvidia") else None
    for place in [] if found is None else found.submodule_search_locations or []:
        for path in sorted(Path(place).glob("lib/libnvrtc.so.*")):
            return path
    raise BuildError(
        "NVRTC is not installed: it compiles the kernels in CUDA C++; install nvidia-cuda-nvrtc-cu12"
    )


def _has_package(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@functools.cache
def nvrtc_version() -> str:
    """The version of the installed NVRTC, such as 12.9.86."""
    nvrtc_library()
    return importlib.metadata.version("nvidia-cuda-nvrtc-cu12")


@functools.cache
def tool_version(name: str) -> str:
    """A tool's own version, such as 12.9.86."""
    text = run_tool(name, "--version")
    match = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    if match is None:
        raise BuildError(f"{name} does not say its version: {text!r}")
    return match.group(1)


def ptxas_version(arch: Arch) -> str:
    """The version of the arch's assembler."""
    return tool_version(arch.ptxas)


def run_tool(name: str, *arguments: str | Path) -> str:
    """What a tool prints.

    Raises:
        BuildError: it failed; the message holds what it said.
    """
    command = [str(tool(name)), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{name} failed with code {done.returncode}: {done.stderr.strip()}")
    return done.stdout
