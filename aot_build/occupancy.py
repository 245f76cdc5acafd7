"""How many warps of a kernel fit on a multiprocessor at once, from what the kernel needs and the arch offers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from .archs import Limits
from .errors import BuildError

WARP_THREADS = 32


class Occupancy(BaseModel):
    """The theoretical occupancy of a variant.

    ``percent`` is that of the warps that a multiprocessor can hold, ``limited_by`` what would have to be smaller for more:
    registers, shared, warps or blocks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    blocks: int
    warps: int
    percent: float
    limited_by: str


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy_of(limits: Limits, *, num_warps: int, registers: int, shared_bytes: int) -> Occupancy:
    """The occupancy of blocks of ``num_warps`` warps, by the rules of NVIDIA's occupancy calculator.

    Args:
        limits: of the arch.
        num_warps: warps of a block.
        registers: per thread.
        shared_bytes: of a block, static and dynamic.

    Raises:
        BuildError: not even one block fits.
    """
    # A warp gets whole units of registers, and lives in one of the partitions.
    per_warp = _up(max(registers, 1) * WARP_THREADS, limits.register_unit)
    warps_by_registers = limits.registers // limits.partitions // per_warp * limits.partitions
    per_block = _up(shared_bytes + limits.reserved_shared_bytes, limits.shared_unit)
    # Of equal ones the first is named: the kernel's own needs before the arch's limits.
    bounds = {
        "registers": warps_by_registers // num_warps,
        "shared": limits.shared_bytes // per_block,
        "warps": limits.warps // num_warps,
        "blocks": limits.blocks,
    }
    limited_by = min(bounds, key=lambda name: bounds[name])
    blocks = bounds[limited_by]
    if blocks == 0:
        raise BuildError(
            f"no block of {num_warps} warps with {registers} registers a thread and {shared_bytes} bytes of shared memory fits"
        )
    warps = blocks * num_warps
    if warps == limits.warps:
        limited_by = "warps"
    return Occupancy(
        blocks=blocks,
        warps=warps,
        percent=round(100 * warps / limits.warps, 1),
        limited_by=limited_by,
    )
