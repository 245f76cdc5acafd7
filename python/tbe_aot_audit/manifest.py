"""manifest.json as records: what a build holds and how it was made.

``aot_build/manifest.py`` writes it. A variant has facts (``code``) when the build compiled it for that arch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from .errors import AuditError
from .text import read_json, visible

SCHEMA_VERSION = 2
Width = Annotated[str, Field(pattern=r"^\d{1,3}$")]
AxisValue = StrictBool | StrictInt | StrictStr


class Record(BaseModel):
    """A part of a document."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Axis(Record):
    """A compile-time choice: its values and their labels in names."""

    name: str
    values: list[AxisValue]
    labels: list[str]
    doc: str


class Param(Record):
    """A run-time parameter, and its place in the argument struct in bytes."""

    name: str
    type: str
    doc: str
    offset: int
    size: int


class ExcludedCell(Record):
    """A cell without a variant, and why."""

    cell: int
    reason: str


class RowLoad(Record):
    """What the build demanded of the widest global load."""

    bytes: int
    min_count: int
    forbid_narrow: bool


class Occupancy(Record):
    """Theoretical occupancy of a multiprocessor: blocks, warps, their share of all warps, and what bounds it."""

    blocks: int
    warps: int
    percent: float
    limited_by: str


class Sass(Record):
    """Instructions by what they do; global loads and stores by bytes a lane."""

    instructions: int
    global_load_bytes: dict[Width, int]
    global_store_bytes: dict[Width, int]
    local_loads: int
    local_stores: int
    shared_loads: int
    shared_stores: int
    global_atomics: int
    shared_atomics: int
    ordered: int
    fences: int
    barriers: int
    calls: int
    fp64: int
    tensor: int


class Code(Record):
    """The facts of a variant's machine code; sizes in bytes, registers per thread."""

    cubin_sha256: str
    cubin_bytes: int
    code_bytes: int
    entry: str
    elf_abi: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    static_shared_bytes: int
    barriers: int
    occupancy: Occupancy
    sass: Sass


class Variant(Record):
    """A combination of axis values on one arch; ``code`` is None if this build leaves it out."""

    name: str
    arch: str
    axes: dict[str, AxisValue]
    cell: int
    built: bool
    blob: int
    constants: dict[str, AxisValue]
    num_warps: int
    num_stages: int
    maxnreg: int
    enable_fp_fusion: bool
    row_loads: list[RowLoad]
    budget: dict[str, int]
    code: Code | None = None

    @model_validator(mode="before")
    @classmethod
    def _gather_facts(cls, value: Any) -> Any:
        # The manifest has them flat, beside the rest.
        if isinstance(value, Mapping) and value.get("built") is True and "code" not in value:
            facts = {name: value[name] for name in Code.model_fields if name in value}
            rest = {name: item for name, item in value.items() if name not in facts}
            return {**rest, "code": facts}
        return value


def _holds(values: list[AxisValue], value: AxisValue) -> bool:
    """Whether a value is there; True is not 1."""
    return any(type(other) is type(value) and other == value for other in values)


class Kernel(Record):
    """One kernel: axes, parameters, the table of cells, and its variants on every arch."""

    summary: str
    function: str
    language: str
    # What it is made for, in this build or not.
    archs: list[str] = []
    # Of a narrow path: which kernels this one runs instead of, and for which calls.
    instead_of: list[str] = []
    serves: str = ""
    source_sha256: str
    axes: list[Axis]
    params: list[Param]
    args_size: int
    constants: list[str]
    cells: list[int]
    excluded: list[ExcludedCell]
    variants: list[Variant]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Kernel:
        # What the rest of this package takes for granted; whether cells lead where they should is a check of `verify`.
        for axis in self.axes:
            if not axis.values or not len(axis.values) == len(axis.labels) == len(set(axis.labels)):
                raise ValueError(f"axis {axis.name} has not one label for each value")
        count = math.prod(len(axis.values) for axis in self.axes)
        if len(self.cells) != count:
            raise ValueError(f"it has {len(self.cells)} cells, its axes {count} combinations")
        values = {axis.name: axis.values for axis in self.axes}
        for variant in self.variants:
            if variant.axes.keys() != values.keys() or any(
                not _holds(values[name], value) for name, value in variant.axes.items()
            ):
                raise ValueError(f"the axes of {variant.name} are not those of the kernel")
            if not 0 <= variant.cell < count or not set(self.constants) <= variant.constants.keys():
                raise ValueError(f"{variant.name} lacks a cell or a constant of its kernel")
        return self

    def is_made_for(self, arch: str) -> bool:
        """Whether a build for the arch has variants of the kernel."""
        return arch in self.archs if self.archs else bool(self.on(arch))

    def on(self, arch: str) -> list[Variant]:
        """The variants of an arch, in the order of the plan."""
        return [variant for variant in self.variants if variant.arch == arch]

    def axes_of(self, cell: int) -> dict[str, AxisValue]:
        """The axis values of a cell; the first axis varies slowest."""
        chosen: dict[str, AxisValue] = {}
        for axis in reversed(self.axes):
            cell, position = divmod(cell, len(axis.values))
            chosen[axis.name] = axis.values[position]
        return {axis.name: chosen[axis.name] for axis in self.axes}

    def cell_of(self, axes: Mapping[str, AxisValue]) -> int:
        """The cell of axis values."""
        cell = 0
        for axis in self.axes:
            cell = cell * len(axis.values) + axis.values.index(axes[axis.name])
        return cell


class Limits(Record):
    """What a multiprocessor offers."""

    warps: int
    blocks: int
    registers: int
    registers_per_thread: int
    register_unit: int
    partitions: int
    shared_bytes: int
    shared_unit: int
    reserved_shared_bytes: int


class Arch(Record):
    """One arch: its pack, and what a device and a driver must be."""

    compute_capability: tuple[int, int]
    least_driver: str
    limits: Limits
    pack: str
    pack_sha256: str
    index_sha256: str
    blob_count: int
    file_size: int
    elf_abi: list[str]


class Toolchain(Record):
    """What compiled the kernels: versions and flags."""

    triton: str
    ptxas: dict[str, str]
    nvdisasm: str
    flags: list[str]
    nvrtc: str | None = None
    nvrtc_flags: list[str] = []


class Manifest(Record):
    """A whole manifest."""

    schema_version: int
    build_id: str
    profile: str
    toolchain: Toolchain
    archs: dict[str, Arch]
    # The value of the axis `optimizer` for each optimizer.
    optimizers: dict[str, str] = {}
    kernels: dict[str, Kernel]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Manifest:
        if not self.archs:
            raise ValueError("it has no arch")
        for name, kernel in self.kernels.items():
            for variant in kernel.variants:
                if variant.arch not in self.archs:
                    raise ValueError(f"{variant.name} of {name} is for {variant.arch}, not an arch")
        return self

    @cached_property
    def variants(self) -> list[tuple[str, Variant]]:
        """Every variant of every arch with its kernel's name, built or not."""
        return [
            (name, variant) for name, kernel in self.kernels.items() for variant in kernel.variants
        ]

    def built(self, arch: str = "") -> Iterator[tuple[str, Variant, Code]]:
        """Kernel, variant and facts of what this build holds; of one arch if named."""
        for kernel, variant in self.variants:
            if variant.code is not None and arch in {"", variant.arch}:
                yield kernel, variant, variant.code


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest.

    Args:
        data: the file's bytes.
        where: what to call it in errors.

    Raises:
        AuditError: it is no manifest, one of another version, or a damaged one.
    """
    found = read_json(data, where)
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version is None or "kernels" not in found:
        raise AuditError(
            f"{where} is no manifest of a build: it has no schema_version or no kernels"
        )
    if version != SCHEMA_VERSION:
        older = isinstance(version, int) and version < SCHEMA_VERSION
        raise AuditError(
            f"{where} has schema version {version!r}, this tool reads {SCHEMA_VERSION}: use the tbe-aot-audit"
            f" that came with that build{'' if older else ', or a newer one'}"
        )
    try:
        return Manifest.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise AuditError(f"{where} is damaged: {visible(place)}: {first['msg']}{more}") from None


def computed_build_id(data: bytes) -> str:
    """The build id that a manifest's content has: a hash over all of the rest (aot_build/manifest.py)."""
    rest = {name: value for name, value in json.loads(data).items() if name != "build_id"}
    return hashlib.sha256(
        json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
