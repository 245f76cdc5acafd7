"""Runs the Triton kernels on the CPU, in Triton's interpreter.

Triton decides when it is imported whether it interprets or compiles, and other tests of this session compile: so the
kernels run in a child process of their own, started once, with ``TRITON_INTERPRET=1`` set before the first import.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from aot_build.plan import KernelPlan, cell_number
from aot_build.planner import make_plan

T = TypeVar("T")
SPECS = Path(__file__).resolve().parents[2] / "kernel_specs"


@dataclass(frozen=True)
class KernelCall:
    """One launch: run-time arguments in order, then the compile-time constants by name."""

    kernel: str
    grid: tuple[int, int]
    args: tuple[Any, ...]
    constants: dict[str, Any]


@cache
def _planned(kernel: str) -> KernelPlan:
    return make_plan(SPECS, "full", ["sm90"]).kernels[kernel]


def constants_of(kernel: str, **axes: str | int | bool) -> dict[str, Any]:
    """The compile-time constants of the variant that serves these axis values, as tuned for sm90."""
    planned = _planned(kernel)
    cell = cell_number({axis.name: axis.values for axis in planned.axes}, axes)
    variant = planned.variants[planned.cells[cell]]
    constexprs = {name for name, kind in variant.signature if kind == "constexpr"}
    values = {name.upper(): value for name, value in variant.axes.items()}
    values |= variant.builds["sm90"].kernel_constants
    return {name: value for name, value in values.items() if name in constexprs}


def _start() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


def _run(calls: list[KernelCall]) -> list[list[torch.Tensor]]:
    from aot_build.loader import load_kernel

    results = []
    for call in calls:
        kernel = load_kernel(SPECS, call.kernel)
        kernel[call.grid](*call.args, **call.constants)
        results.append([a for a in call.args if isinstance(a, torch.Tensor)])
    return results


class Interpreter:
    """A child process in which kernels are interpreted."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, *calls: KernelCall) -> list[list[torch.Tensor]]:
        """Launch ``calls`` in order on copies of their tensors; the tensors of each call as it left them.

        Tensors are copied into the child once per call of ``run``: a tensor shared by two calls is shared there too.
        """
        return self._pool.submit(_run, list(calls)).result()

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in the child: one that launches a kernel of the tests' own."""
        return self._pool.submit(function, *arguments).result()


@contextmanager
def interpreter() -> Iterator[Interpreter]:
    """An interpreter for the length of the block."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_start) as pool:
        yield Interpreter(pool)
