"""The binary interface of a kernel: parameter types, their C types, and where each lies.

Triton's kernels take their run-time parameters in order, in the natural C layout, followed by two pointers
to scratch memory that Triton appends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

POINTER_SIZE = 8
SCRATCH_POINTERS = ("global_scratch", "profile_scratch")


@dataclass(frozen=True)
class Scalar:
    """A scalar type: its size in bytes and the C type that holds it (half types travel as bits)."""

    size: int
    c_type: str


SCALARS = {
    "i1": Scalar(1, "bool"),
    "i8": Scalar(1, "int8_t"),
    "i32": Scalar(4, "int32_t"),
    "i64": Scalar(8, "int64_t"),
    "fp16": Scalar(2, "uint16_t"),
    "bf16": Scalar(2, "uint16_t"),
    "fp32": Scalar(4, "float"),
    "fp64": Scalar(8, "double"),
}


@dataclass(frozen=True)
class Slot:
    """Where one parameter lies in the argument block, in bytes."""

    name: str
    type: str
    offset: int
    size: int


def axes_in_type(template: str) -> list[str]:
    """The axes that a type such as ``*i{index_width}`` names."""
    return re.findall(r"\{(\w+)\}", template)


def expand_type(template: str, axes: Mapping[str, object]) -> str:
    """The type of one variant's parameter."""
    return re.sub(r"\{(\w+)\}", lambda match: str(axes[match.group(1)]), template)


def is_type(expanded: str) -> bool:
    """Whether Triton's signature may say this."""
    return expanded.removeprefix("*") in SCALARS


def size_of(type_: str) -> int:
    """Bytes of a parameter; a pointer's target may still name axes."""
    return POINTER_SIZE if type_.startswith("*") else SCALARS[type_].size


def c_type_of(type_: str) -> str:
    """The C type of a parameter in the generated struct."""
    return "const void*" if type_.startswith("*") else SCALARS[type_].c_type


def layout(params: Iterable[tuple[str, str]]) -> tuple[list[Slot], int]:
    """Slots of the (name, type) parameters and of the scratch pointers, and the size of all of it."""
    slots = []
    end = 0
    scratch = [(name, "*i8") for name in SCRATCH_POINTERS]
    for name, type_ in [*params, *scratch]:
        size = size_of(type_)
        offset = -(-end // size) * size
        slots.append(Slot(name, type_, offset, size))
        end = offset + size
    return slots, end
