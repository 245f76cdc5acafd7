"""The GPU architectures that kernels can be compiled for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor offers and how it is handed out, by NVIDIA's programming guide ("Technical Specifications per Compute Capability").

    Registers are 32-bit ones, sizes are bytes. ``reserved_shared_bytes`` is what the system takes of each block's shared memory.
    """

    warps: int = 64
    blocks: int = 32
    registers: int = 65536
    registers_per_thread: int = 255
    register_unit: int = 256
    # A multiprocessor has this many parts with registers of their own; a warp lives in one of them.
    partitions: int = 4
    shared_bytes: int = 233472
    shared_unit: int = 128
    reserved_shared_bytes: int = 1024


@dataclass(frozen=True)
class Arch:
    """One target: its compute capability, the tools that serve it, what its multiprocessors offer.

    ``ptxas`` is the name of a binary in Triton's wheel. It is the older one on purpose: cubins of the newer
    one carry an ELF ABI that drivers from before CUDA 13 may refuse. ``least_driver`` is the first Linux driver that loads
    such cubins and has the launcher's functions (CUDA 12.0 for ``cuLibraryLoadData``, 12.8 for compute capability 10.0), by
    NVIDIA's CUDA release notes.
    """

    name: str
    major: int
    minor: int
    ptxas: str
    disassembler_target: str
    least_driver: str
    limits: Limits = Limits()

    @property
    def capability(self) -> int:
        """The number that Triton calls the arch by, 90 for compute capability 9.0."""
        return self.major * 10 + self.minor

    @property
    def pack_file(self) -> str:
        """The name of the arch's pack."""
        return f"{self.name}.pack"


ARCHS = {
    arch.name: arch
    for arch in (
        Arch("sm90", 9, 0, ptxas="ptxas", disassembler_target="SM90", least_driver="525.60.13"),
        Arch("sm100", 10, 0, ptxas="ptxas", disassembler_target="SM100", least_driver="570.26"),
    )
}
