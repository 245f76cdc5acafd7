"""The dispatch tables in libtbe_aot.so, read from the file: nothing of it is loaded or run.

The launcher follows the same tables (csrc_launcher/core/kernel_table.h), so what is read here is what a call would find.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .elf import Elf, Memory
from .errors import AuditError

TABLES = "tbe_aot_tables"
# A damaged count must not make this read forever: entries of all tables together.
_MOST = 1 << 20


@dataclass(frozen=True)
class LibraryVariant:
    """A variant as the launcher launches it; ``blob`` is -1 if the build leaves it out."""

    name: str
    entry: str
    blob: int
    num_warps: int
    shared_bytes: int
    constants: tuple[int, ...]


@dataclass(frozen=True)
class LibraryKernel:
    """A kernel: axes with labels, parameters (name, type, offset, size), cells, and variants by arch."""

    name: str
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    params: tuple[tuple[str, str, int, int], ...]
    args_size: int
    constants: tuple[str, ...]
    cells: tuple[int, ...]
    variants: dict[str, tuple[LibraryVariant, ...]]


@dataclass(frozen=True)
class LibraryArch:
    """An arch: compute capability, the pack's file, and the hash of header and index that the pack must have."""

    name: str
    compute_capability: tuple[int, int]
    pack: str
    index_sha256: str


@dataclass(frozen=True)
class Library:
    """All tables."""

    profile: str
    build_id: str
    archs: tuple[LibraryArch, ...]
    kernels: tuple[LibraryKernel, ...]


class _Reader:
    """Walks the tables; every offset is that of the struct in kernel_table.h."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.left = _MOST

    def text(self, address: int) -> str:
        return self.memory.string(self.memory.pointer(address))

    def number(self, address: int) -> int:
        (value,) = struct.unpack("<i", self.memory.read(address, 4))
        return int(value)

    def count(self, address: int) -> int:
        value = self.number(address)
        self.left -= value
        if value < 0 or self.left < 0:
            raise AuditError(f"{self.memory.elf.where} is damaged: a table of {value} entries")
        return value

    def numbers(self, address: int, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}i", self.memory.read(address, 4 * count))

    def texts(self, address: int, count: int) -> tuple[str, ...]:
        return tuple(self.text(address + 8 * index) for index in range(count))

    def build(self, address: int) -> Library:
        archs_at, kernels_at = self.memory.pointer(address + 16), self.memory.pointer(address + 32)
        archs = tuple(self.arch(archs_at + 56 * index) for index in range(self.count(address + 24)))
        return Library(
            profile=self.text(address),
            build_id=self.text(address + 8),
            archs=archs,
            kernels=tuple(
                self.kernel(kernels_at + 80 * index, archs)
                for index in range(self.count(address + 40))
            ),
        )

    def arch(self, address: int) -> LibraryArch:
        return LibraryArch(
            name=self.text(address),
            compute_capability=(self.number(address + 8), self.number(address + 12)),
            pack=self.text(address + 16),
            index_sha256=self.memory.read(address + 24, 32).hex(),
        )

    def kernel(self, address: int, archs: tuple[LibraryArch, ...]) -> LibraryKernel:
        axes_at, params_at = self.memory.pointer(address + 8), self.memory.pointer(address + 24)
        axes, params = self.count(address + 16), self.count(address + 32)
        constant_names = self.memory.pointer(address + 40)
        constants = self.count(address + 48)
        variant_count = self.count(address + 68)
        self.left -= variant_count * len(archs)
        variants_at = self.memory.pointer(address + 72)
        variants = {}
        for index, arch in enumerate(archs):
            table = self.memory.pointer(variants_at + 8 * index)
            if table:
                variants[arch.name] = tuple(
                    self.variant(table + 40 * number, constants) for number in range(variant_count)
                )
        return LibraryKernel(
            name=self.text(address),
            axes=tuple(self.axis(axes_at + 24 * index) for index in range(axes)),
            params=tuple(self.param(params_at + 24 * index) for index in range(params)),
            args_size=self.number(address + 36),
            constants=self.texts(constant_names, constants),
            cells=self.numbers(self.memory.pointer(address + 56), self.count(address + 64)),
            variants=variants,
        )

    def axis(self, address: int) -> tuple[str, tuple[str, ...]]:
        labels = self.memory.pointer(address + 16)
        return self.text(address), self.texts(labels, self.count(address + 8))

    def param(self, address: int) -> tuple[str, str, int, int]:
        return (
            self.text(address),
            self.text(address + 8),
            self.number(address + 16),
            self.number(address + 20),
        )

    def variant(self, address: int, constants: int) -> LibraryVariant:
        blob, num_warps, shared_bytes = self.numbers(address + 16, 3)
        values = self.memory.pointer(address + 32)
        return LibraryVariant(
            name=self.text(address),
            entry=self.text(address + 8),
            blob=blob,
            num_warps=num_warps,
            shared_bytes=shared_bytes,
            constants=self.numbers(values, constants) if constants else (),
        )


def read_library(data: bytes, where: str) -> Library:
    """Read the tables of a library.

    Args:
        data: the file's bytes.
        where: what to call it in errors.

    Raises:
        AuditError: it is no library of this project, or a damaged one.
    """
    memory = Memory(Elf(data, where))
    address = memory.pointer(memory.elf.symbol(TABLES))
    if not address:
        raise AuditError(f"{where} is damaged: {TABLES} points nowhere")
    try:
        return _Reader(memory).build(address)
    except (struct.error, OverflowError) as error:
        raise AuditError(
            f"{where} is damaged: its dispatch tables cannot be read ({error})"
        ) from None
