"""Runs what the stand-in driver recorded: each launch goes through Triton's interpreter, on the packed bytes.

Kernels in CUDA C++ run as the host's compiler makes them. Grid, variant and every argument are the launcher's own; pointers are addresses of this process' memory. The process
must have been started with ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import Any

import torch

from aot_build.kernel_source import language_of
from aot_build.loader import load_kernel
from aot_build.plan import KernelPlan, Variant
from aot_build.planner import make_plan
from tests.launcher.artifacts import ARCHS, SPECS
from tests.launcher.support import Call, Standin
from tests.simt.host_kernel import HostKernel, host_kernel

POINTED = {
    "*i8": torch.int8,
    "*i32": torch.int32,
    "*i64": torch.int64,
    "*fp16": torch.float16,
    "*bf16": torch.bfloat16,
    "*fp32": torch.float32,
}
SCALARS = {"i32": "<i", "i64": "<q", "fp32": "<f", "fp64": "<d"}
# Blocks of a kernel in CUDA C++ that run at the same time.
SIDE_BY_SIDE = 3


@cache
def _variants() -> dict[str, tuple[KernelPlan, Variant]]:
    plan = make_plan(SPECS, "full", ARCHS)
    return {v.name: (kernel, v) for kernel in plan.kernels.values() for v in kernel.variants}


@cache
def _function(kernel: str) -> Any:
    return load_kernel(SPECS, kernel)


def _argument(type_: str, packed: bytes) -> Any:
    """A number, or a tensor whose data pointer is the packed address."""
    if type_ in SCALARS:
        return struct.unpack(SCALARS[type_], packed)[0]
    dtype = POINTED[type_]
    (address,) = struct.unpack("<Q", packed)
    if address == 0:
        return torch.empty(0, dtype=dtype)
    memory = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(memory, dtype=dtype, count=1)


def _host_kernel(kernel: KernelPlan, variant: Variant, arch: str) -> HostKernel:
    build = variant.builds[arch]
    axes = {name.upper(): value for name, value in variant.axes.items()}
    constants = {
        name: int(value)
        for name, value in {**axes, **build.kernel_constants}.items()
        if not isinstance(value, str)
    }
    return host_kernel(kernel.name, kernel.function, int(build.options["num_warps"]), constants)


def _launch(call: Call) -> str:
    name, arch = str(call.details["cubin"]).split()
    kernel, variant = _variants()[name]
    types = {name: type_ for name, type_ in variant.signature if type_ != "constexpr"}
    packed = [bytes.fromhex(arg) for arg in call.details["args"]]
    # The two scratch pointers come last and are null.
    assert packed[len(types) :] == [bytes(8), bytes(8)]
    grid = call.details["grid"]
    if language_of(SPECS / kernel.name) == "cuda":
        arguments = [
            (ctypes.c_int if len(arg) == 4 else ctypes.c_void_p).from_buffer_copy(arg)
            for arg in packed[: len(types)]
        ]
        assert grid[2] == 1
        _host_kernel(kernel, variant, arch)(grid[0], arguments, SIDE_BY_SIDE, blocks_y=grid[1])
        return name
    named = {
        name: _argument(type_, arg)
        for (name, type_), arg in zip(types.items(), packed, strict=False)
    }
    values = {axis.upper(): value for axis, value in variant.axes.items()}
    values |= variant.builds[arch].kernel_constants
    constants = {name: values[name] for name, type_ in variant.signature if type_ == "constexpr"}
    _function(kernel.name)[tuple(grid)](**named, **constants)
    return name


def replay(standin: Standin) -> list[str]:
    """Carry out the recorded clears and launches in order; the names of the variants launched."""
    launched = []
    for call in standin.take("cuMemsetD32Async", "cuLaunchKernelEx"):
        assert call.result == 0
        if call.function == "cuLaunchKernelEx":
            launched.append(_launch(call))
        else:
            ctypes.memset(call.details["address"], call.details["value"], 4 * call.details["count"])
    return launched
