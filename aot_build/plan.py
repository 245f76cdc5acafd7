"""plan.json: every variant of every kernel, and how a combination of axis values finds its variant.

A cell is one combination of axis values; its number counts with the first axis slowest. A cell has a variant of
its own, is served by another cell's (``exclude`` with ``use``), or has none (``exclude`` alone), and then no operator
may ask for it. The plan does not depend on the profile or on the archs of a build, except for the marks of what
that build compiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from .conditions import AxisValue
from .errors import BuildError
from .files import readable_json
from .kernel_source import Language

NO_VARIANT = -1


class Record(BaseModel):
    """A part of plan.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AxisPlan(Record):
    """An axis with a label for every value."""

    name: str
    values: list[AxisValue]
    labels: list[str]
    doc: str


class ParamPlan(Record):
    """A run-time parameter and its place in the argument block; scratch pointers come last."""

    name: str
    type: str
    doc: str
    offset: int
    size: int


class RowLoadPlan(Record):
    """What the machine code must show: see ``row_loads`` in the spec."""

    bytes: int
    min_count: int
    forbid_narrow: bool


class Build(Record):
    """How one variant is compiled for one arch, what the launcher reads, what the result must satisfy."""

    options: dict[str, int | bool]
    kernel_constants: dict[str, AxisValue]
    launch_constants: dict[str, int]
    row_loads: list[RowLoadPlan]
    limits: dict[str, int]


class Variant(Record):
    """One compiled combination of axis values, on each of the kernel's archs."""

    name: str
    cell: int
    axes: dict[str, AxisValue]
    selected: bool
    # Pairs, because JSON objects are stored with sorted keys and a signature has an order.
    signature: list[tuple[str, str]]
    divisibility: dict[str, int]
    builds: dict[str, Build]


class ExcludedCell(Record):
    """A cell without a variant, and why."""

    cell: int
    reason: str


class KernelPlan(Record):
    """Everything planned for one kernel."""

    name: str
    function: str
    summary: str
    archs: list[str]
    instead_of: list[str]
    serves: str
    language: Language
    source_sha256: str
    axes: list[AxisPlan]
    params: list[ParamPlan]
    args_size: int
    launch_constants: list[str]
    cells: list[int]
    excluded: list[ExcludedCell]
    variants: list[Variant]

    def cell_axes(self, cell: int) -> dict[str, AxisValue]:
        """The axis values of a cell."""
        return cell_values({axis.name: axis.values for axis in self.axes}, cell)


class Plan(Record):
    """plan.json; ``optimizers`` has the axis value of each optimizer's formula."""

    schema_version: int = 1
    profile: str
    archs: list[str]
    optimizers: dict[str, str]
    kernels: dict[str, KernelPlan]

    def to_json(self) -> bytes:
        """The bytes of plan.json."""
        return readable_json(self.model_dump())

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan.json."""
        return cls.model_validate_json(path.read_bytes())


def cell_number(axes: Mapping[str, list[AxisValue]], chosen: Mapping[str, AxisValue]) -> int:
    """The number of a cell; the first axis varies slowest."""
    number = 0
    for name, values in axes.items():
        number = number * len(values) + values.index(chosen[name])
    return number


def cell_values(axes: dict[str, list[AxisValue]], cell: int) -> dict[str, AxisValue]:
    """The axis values of a cell."""
    chosen = {}
    for name in reversed(axes):
        cell, position = divmod(cell, len(axes[name]))
        chosen[name] = axes[name][position]
    return {name: chosen[name] for name in axes}


def check_total_and_disjoint(plan: Plan) -> None:
    """Every cell has exactly one variant or is excluded; every variant has exactly one cell and name of its own."""
    for kernel in plan.kernels.values():
        combinations = list(itertools.product(*(axis.values for axis in kernel.axes)))
        excluded = {cell.cell for cell in kernel.excluded}
        without = {cell for cell, variant in enumerate(kernel.cells) if variant == NO_VARIANT}
        own = [variant.cell for variant in kernel.variants]
        names = {variant.name for variant in kernel.variants}
        if (
            len(kernel.cells) != len(combinations)
            or excluded != without
            or [kernel.cells[cell] for cell in own] != list(range(len(own)))
            or len(names) != len(kernel.variants)
        ):
            raise BuildError(f"the plan of {kernel.name} is not total and disjoint")
