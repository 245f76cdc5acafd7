"""What is known of a variant's machine code beyond its record: size, barriers, occupancy, what its instructions do."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from .archs import Arch
from .cubin import CubinRecord, named_barriers, text_section
from .occupancy import Occupancy, occupancy_of
from .sass import SassCounts


class MachineCode(BaseModel):
    """The facts of one variant on one arch; ``barriers`` are named ones, of the 16 that a block has.

    ``static_shared_bytes`` are the kernel's own: where there are any, ptxas counts what the system reserves with them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code_bytes: int
    static_shared_bytes: int
    barriers: int
    occupancy: Occupancy
    sass: SassCounts


def machine_code_of(
    arch: Arch, record: CubinRecord, cubin: bytes, counts: SassCounts
) -> MachineCode:
    """The facts of a cubin.

    Args:
        arch: what it was compiled for.
        record: its record.
        cubin: its bytes.
        counts: of its instructions.
    """
    static_shared_bytes = max(0, record.static_shared_bytes - arch.limits.reserved_shared_bytes)
    return MachineCode(
        static_shared_bytes=static_shared_bytes,
        code_bytes=len(text_section(cubin)),
        barriers=named_barriers(cubin),
        occupancy=occupancy_of(
            arch.limits,
            num_warps=record.num_warps,
            registers=record.registers,
            shared_bytes=static_shared_bytes + record.shared_bytes,
        ),
        sass=counts,
    )
