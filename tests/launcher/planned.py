"""Plans as data, for tests of the planner: launches with their arguments by name."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.launcher.support import Child

# How an argument is packed, by its type; pointers and the rest by size.
FORMATS = {"fp32": "<f", "fp64": "<d"}
SIZES = {1: "b", 4: "<i", 8: "<q"}


@dataclass(frozen=True)
class Planned:
    """A launch, its arguments by name."""

    variant: str
    grid: tuple[int, int, int]
    constants: dict[str, int]
    args: dict[str, Any]

    @property
    def kernel(self) -> str:
        return self.variant.split("__")[0]


def describe(child: Child, plan: Any) -> list[Planned]:
    """The launches of a plan."""
    params = {kernel.name: kernel.params for kernel in child.launcher.kernels()}
    return [
        Planned(
            launch.variant.name,
            launch.grid,
            launch.variant.constants,
            {
                p.name: struct.unpack_from(
                    FORMATS.get(p.type, SIZES[p.size]), launch.args, p.offset
                )[0]
                for p in params[launch.kernel]
            },
        )
        for launch in plan.launches
    ]


def plan_forward(child: Child, request: Mapping[str, Any]) -> Any:
    """The plan of a lookup: fields of ``ForwardRequest``, and ``layout``."""
    fields = dict(request)
    layout = fields.pop("layout")
    return child.launcher.plan_forward(child.launcher.ForwardRequest(**fields), layout)


def layout(*groups: tuple[int, int, int], width: int = 0, total_rows: int = 100) -> list[int]:
    """A layout of (bucket, aligned, features) groups, every dim as large as its bucket, and no table that is small."""
    features = sum(count for *_, count in groups)
    width = width or sum(bucket * count for bucket, _, count in groups)
    return [
        *(1, features, width, 1000, total_rows, 1000),
        *(value for group in groups for value in group),
    ]
