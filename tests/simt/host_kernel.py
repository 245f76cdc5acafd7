"""A kernel in CUDA C++, compiled for the host by the C++ compiler that also makes the launcher."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from aot_build.kernel_source import kernel_file
from aot_build.spec import load_spec

SPECS = Path(__file__).parents[2] / "kernel_specs"
INCLUDE = Path(__file__).parent / "include"
WARP_SIZE = 32


class HostKernel:
    """One variant of a kernel; call it as a launch."""

    def __init__(self, library: Path, num_warps: int) -> None:
        self._library = ctypes.CDLL(str(library))
        self._launch = self._library.simt_launch
        self._threads = num_warps * WARP_SIZE

    def __call__(
        self,
        blocks: int,
        arguments: Sequence[ctypes.c_void_p | ctypes.c_int | ctypes.c_longlong | ctypes.c_float],
        side_by_side: int,
        *,
        blocks_y: int = 1,
    ) -> None:
        """Run a grid of blocks, so many of them at a time; the two appended pointers are null.

        Args:
            blocks: of the grid's first dimension.
            arguments: the run-time parameters in order, pointers as ``c_void_p``.
            side_by_side: blocks that run at the same time.
            blocks_y: of its second dimension.
        """
        kept = [*arguments, ctypes.c_void_p(), ctypes.c_void_p()]
        addresses = (ctypes.c_void_p * len(kept))(*map(ctypes.addressof, kept))
        self._launch(blocks, blocks_y, self._threads, side_by_side, addresses)

    def setting(self, name: str) -> ctypes.c_int:
        """A variable of the host's stand-ins, such as ``simt_first_thread_first``; set its ``value``."""
        return ctypes.c_int.in_dll(self._library, name)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tbe-aot-simt-")


def host_kernel(
    kernel: str, function: str, num_warps: int, constants: Mapping[str, int]
) -> HostKernel:
    """Compile a variant, once per process.

    Args:
        kernel: the folder's name.
        function: the kernel's function.
        num_warps: warps of a block.
        constants: the macros of the variant.
    """
    return _compiled(kernel, function, num_warps, tuple(sorted(constants.items())))


def tuned_kernel(kernel: str, key_width: int, **axes: str) -> tuple[HostKernel, dict[str, int]]:
    """The variant of a key width and other axes, and its constants, as its spec tunes it for sm90.

    Args:
        kernel: the folder's name.
        key_width: bits of a key.
        axes: values of the other axes.
    """
    spec = load_spec(SPECS / kernel)
    values = {"arch": "sm90", "key_width": key_width, **axes}
    settings: dict[str, int] = {}
    for rule in spec.tuning.rules:
        if all(values[axis] in allowed for axis, allowed in rule.when.items()):
            settings |= {name: int(value) for name, value in rule.set.items()}
    constants = {name: settings[name] for name in spec.tuning.kernel_constants}
    macros = {**constants, "KEY_WIDTH": key_width}
    return host_kernel(kernel, spec.kernel.function, settings["num_warps"], macros), constants


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    """A tensor as an argument."""
    return ctypes.c_void_p(tensor.data_ptr())


@functools.cache
def _compiled(
    kernel: str, function: str, num_warps: int, constants: tuple[tuple[str, int], ...]
) -> HostKernel:
    name = "_".join([kernel, str(num_warps), *(f"{key}{value}" for key, value in constants)])
    source = Path(_folder().name) / f"{name}.cpp"
    library = source.with_suffix(".so")
    macros = {**dict(constants), "NUM_WARPS": num_warps}
    source.write_text(
        "".join(f"#define {key} {value}\n" for key, value in macros.items())
        + f'#include "simt.h"\n#include "{kernel_file(SPECS / kernel)}"\nSIMT_KERNEL({function})\n'
    )
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-g", "-fPIC", "-shared"]
    command += ["-pthread", "-Wall", "-Wno-unknown-pragmas", f"-I{INCLUDE}", f"-I{SPECS}"]
    done = subprocess.run(
        [*command, str(source), "-o", str(library)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{kernel} does not compile for the host:\n{done.stderr}")
    return HostKernel(library, num_warps)
