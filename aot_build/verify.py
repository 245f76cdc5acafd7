"""What a spec claims about compiled code, checked against the cubins: parameters, row loads, budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .cubin import CubinRecord
from .machine_code import MachineCode
from .plan import Build, KernelPlan

# The limits that are lower bounds. A lost fence fails no numeric test, or one in a million.
LEAST_OCCUPANCY = "occupancy_percent"
LEAST_COUNTS = ("fences", "ordered")


def check_variant(
    kernel: KernelPlan, build: Build, record: CubinRecord, code: MachineCode
) -> Iterator[str]:
    """Everything about one compiled variant that contradicts the spec.

    Args:
        kernel: the plan of its kernel.
        build: the plan of this variant on this arch.
        record: what is known of the cubin.
        code: what is known of its machine code.
    """
    yield from _check_params(kernel, record)
    yield from _check_row_loads(build, code.sass.global_load_bytes)
    yield from _check_limits(build, record, code)


def _check_params(kernel: KernelPlan, record: CubinRecord) -> Iterator[str]:
    expected = [(param.offset, param.size) for param in kernel.params]
    found = [(param.offset, param.size) for param in record.params]
    if found != expected:
        yield f"parameters (offset, size) are {found} in the cubin, {expected} in the struct"


def _check_row_loads(build: Build, loads: Mapping[str, int]) -> Iterator[str]:
    shown = ", ".join(f"{count} of {width} bytes" for width, count in loads.items()) or "none"
    widest = max(map(int, loads), default=0)
    for wanted in build.row_loads:
        if widest != wanted.bytes:
            yield f"row_loads: the widest global load must have {wanted.bytes} bytes; found {shown}"
        elif loads[str(widest)] < wanted.min_count:
            yield f"row_loads: at least {wanted.min_count} loads of {widest} bytes; found {shown}"
        if wanted.forbid_narrow and ("1" in loads or "2" in loads):
            yield f"row_loads: no global load of 1 or 2 bytes; found {shown}"


def _check_limits(build: Build, record: CubinRecord, code: MachineCode) -> Iterator[str]:
    # Static shared memory holds what the assembler reserves; the rest is asked for at launch.
    used = {
        "registers": record.registers,
        "spill_bytes": record.spill_bytes,
        "stack_bytes": record.stack_bytes,
        "shared_bytes": record.shared_bytes,
        "cubin_bytes": record.cubin_bytes,
    }
    counts = {"fences": code.sass.fences, "ordered": code.sass.ordered}
    for name, limit in build.limits.items():
        if name == LEAST_OCCUPANCY:
            found = code.occupancy
            if found.percent < limit:
                yield (
                    f"budget missed: occupancy = {found.percent:g} %, limited by {found.limited_by};"
                    f" allowed: at least {limit} %"
                )
        elif name in LEAST_COUNTS:
            if counts[name] < limit:
                yield f"budget missed: {name} = {counts[name]}; allowed: at least {limit}"
        elif used[name] > limit:
            yield f"budget exceeded: {name} = {used[name]}; allowed: at most {limit}"
