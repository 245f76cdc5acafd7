"""Recorded facts against what follows from them: occupancy, and what the build demanded of a variant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Literal

from .manifest import Code, Limits, Occupancy, Variant

_WARP_THREADS = 32
# By the name of a budget's limit: how its fact is read, and whether the limit is an upper or a lower one.
_LIMITS: dict[str, tuple[Callable[[Code], float], Literal["most", "least"]]] = {
    **{
        name: (attrgetter(name), "most")
        for name in ("registers", "spill_bytes", "stack_bytes", "shared_bytes", "cubin_bytes")
    },
    "occupancy_percent": (attrgetter("occupancy.percent"), "least"),
    "fences": (attrgetter("sass.fences"), "least"),
    "ordered": (attrgetter("sass.ordered"), "least"),
}


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy_of(limits: Limits, num_warps: int, registers: int, shared_bytes: int) -> Occupancy:
    """The theoretical occupancy, by the rules of NVIDIA's calculator (as aot_build/occupancy.py has them).

    Raises:
        ZeroDivisionError: limits of no chip.
    """
    per_warp = _up(max(registers, 1) * _WARP_THREADS, limits.register_unit)
    bounds = {
        "registers": limits.registers
        // limits.partitions
        // per_warp
        * limits.partitions
        // num_warps,
        "shared": limits.shared_bytes
        // _up(shared_bytes + limits.reserved_shared_bytes, limits.shared_unit),
        "warps": limits.warps // num_warps,
        "blocks": limits.blocks,
    }
    limited_by = min(bounds, key=lambda name: bounds[name])
    warps = bounds[limited_by] * num_warps
    return Occupancy(
        blocks=bounds[limited_by],
        warps=warps,
        percent=round(100 * warps / limits.warps, 1),
        limited_by="warps" if warps == limits.warps else limited_by,
    )


def fact_problems(variant: Variant, code: Code, limits: Limits) -> Iterator[str]:
    """Where the facts of a variant contradict each other or what the build demanded.

    Args:
        variant: the variant.
        code: its facts.
        limits: of its arch.
    """
    shared_bytes = code.shared_bytes + code.static_shared_bytes
    try:
        expected = occupancy_of(limits, variant.num_warps, code.registers, shared_bytes)
    except ZeroDivisionError:
        yield f"no occupancy follows from {variant.num_warps} warps and the limits of {variant.arch}"
    else:
        if code.occupancy != expected:
            yield f"its occupancy is recorded as {_shown(code.occupancy)}; from registers and shared memory follow {_shown(expected)}"
    for name, limit in variant.budget.items():
        if name not in _LIMITS:
            yield f"its budget has a limit of {name}: {', '.join(_LIMITS)} are known"
            continue
        read, kind = _LIMITS[name]
        found = read(code)
        if found > limit if kind == "most" else found < limit:
            yield f"its {name} is {found:g}, the build demanded at {kind} {limit}"
    loads = code.sass.global_load_bytes
    shown = ", ".join(f"{count} of {width} bytes" for width, count in loads.items()) or "none"
    widest = max(map(int, loads), default=0)
    for wanted in variant.row_loads:
        narrow = wanted.forbid_narrow and ("1" in loads or "2" in loads)
        if widest != wanted.bytes or loads.get(str(widest), 0) < wanted.min_count or narrow:
            yield (
                f"its global loads are {shown}; the build demanded at least {wanted.min_count} of {wanted.bytes} bytes, none wider"
                + (", none of 1 or 2 bytes" if wanted.forbid_narrow else "")
            )


def _shown(occupancy: Occupancy) -> str:
    return f"{occupancy.blocks} blocks, {occupancy.warps} warps, {occupancy.percent:g} % limited by {occupancy.limited_by}"
