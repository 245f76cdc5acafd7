"""The GPU architectures that kernels can be compiled for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arch:
    """One target: its compute capability and the tools that serve it.

    ``ptxas`` is the name of a binary in Triton's wheel. It is the older one on purpose: cubins of the newer
    one carry an ELF ABI that drivers from before CUDA 13 may refuse.
    """

    name: str
    major: int
    minor: int
    ptxas: str
    disassembler_target: str

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
        Arch("sm90", 9, 0, ptxas="ptxas", disassembler_target="SM90"),
        Arch("sm100", 10, 0, ptxas="ptxas", disassembler_target="SM100"),
    )
}
