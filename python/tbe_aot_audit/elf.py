"""Just enough of ELF for cubins and for the library: sections, and memory as the loader would lay it out."""

from __future__ import annotations

import struct
from functools import cached_property
from typing import NamedTuple

from .errors import AuditError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_NOBITS = 8
_LOADED = 1
X86_64 = 62
CUDA = 190
# Of names; without an end a name would reach to the end of the file.
_LONGEST_NAME = 4096
# By machine the relocation that adds the base address: what a pointer in a shared library's data is.
_RELATIVE = {X86_64: 8, 183: 1027}


class Section(NamedTuple):
    """A section: name, flags, link information, address, size in memory, and bytes (none if it has none in the file)."""

    name: str
    flags: int
    info: int
    address: int
    size: int
    data: bytes


class Elf:
    """A 64-bit little-endian ELF file.

    Raises:
        AuditError: it is none, or a table points outside of it.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        if len(data) < _HEADER.size or data[:6] != b"\x7fELF\x02\x01":
            raise AuditError(f"{where} is no 64-bit ELF file")
        header = _HEADER.unpack_from(data)
        self.os_abi = data[7]
        self.abi_version = data[8]
        self.machine: int = header[2]
        self.flags: int = header[7]
        self._segment_table = (header[5], header[9], header[10])
        self._sections = (header[6], header[11], header[12], header[13])

    def _table(
        self, layout: struct.Struct, start: int, size: int, count: int
    ) -> list[tuple[int, ...]]:
        if count and (size != layout.size or start + size * count > len(self.data)):
            raise AuditError(
                f"{self.where} is damaged: a table of its ELF header lies outside the file"
            )
        return list(layout.iter_unpack(self.data[start : start + size * count])) if count else []

    @cached_property
    def sections(self) -> list[Section]:
        """All sections."""
        start, size, count, names_index = self._sections
        headers = self._table(_SECTION, start, size, count)
        if names_index >= len(headers):
            raise AuditError(f"{self.where} is damaged: its sections have no names")
        # A section's bytes are its own: of overlapping ones a small file could hold any number.
        if sum(header[5] for header in headers if header[1] != _NOBITS) > len(self.data):
            raise AuditError(f"{self.where} is damaged: its sections overlap")
        names = self._bytes_of(headers[names_index])
        return [
            Section(
                name=_string(names, header[0]),
                flags=header[2],
                info=header[7],
                address=header[3],
                size=header[5],
                data=self._bytes_of(header),
            )
            for header in headers
        ]

    def _bytes_of(self, header: tuple[int, ...]) -> bytes:
        if header[1] == _NOBITS:
            return b""
        start, size = header[4], header[5]
        if start + size > len(self.data):
            raise AuditError(f"{self.where} is damaged: a section lies outside the file")
        return self.data[start : start + size]

    def segments(self) -> list[tuple[int, int, int, int]]:
        """What the loader maps: address, offset in the file, size in the file, size in memory."""
        return [
            (address, offset, in_file, in_memory)
            for kind, _, offset, address, _, in_file, in_memory, _ in self._table(
                _SEGMENT, *self._segment_table
            )
            if kind == _LOADED
        ]

    def section(self, name: str) -> Section | None:
        """The section of a name, if there is one."""
        return next((section for section in self.sections if section.name == name), None)

    def symbol(self, name: str) -> int:
        """The address of a symbol that a library exports.

        Raises:
            AuditError: it exports none of that name.
        """
        symbols, names = self.section(".dynsym"), self.section(".dynstr")
        if symbols is not None and names is not None and len(symbols.data) % _SYMBOL.size == 0:
            for entry in _SYMBOL.iter_unpack(symbols.data):
                if _string(names.data, entry[0]) == name and entry[4]:
                    return int(entry[4])
        raise AuditError(
            f"{self.where} exports no {name}: it is not a library of this project, or an older one"
        )


def _string(names: bytes, start: int) -> str:
    most = start + _LONGEST_NAME
    end = names.find(b"\0", start, most)
    return names[start : end if end >= 0 else most].decode("utf-8", "replace")


class Memory:
    """A shared library's memory as if loaded at address 0: bytes by address, pointers relocated.

    Raises:
        AuditError: the machine is none that is known here, or a table lies outside the file.
    """

    def __init__(self, elf: Elf) -> None:
        self.elf = elf
        if elf.machine not in _RELATIVE:
            raise AuditError(
                f"{elf.where} is for machine {elf.machine}; x86-64 and AArch64 are read"
            )
        self._segments = elf.segments()
        self._pointers: dict[int, int] = {}
        relocations = elf.section(".rela.dyn")
        if relocations is not None and len(relocations.data) % _RELA.size == 0:
            for address, kind, addend in _RELA.iter_unpack(relocations.data):
                if kind == _RELATIVE[elf.machine]:
                    self._pointers[address] = addend

    def read(self, address: int, size: int) -> bytes:
        """Bytes at an address; pointers in them are not relocated.

        Raises:
            AuditError: they are in no segment.
        """
        for start, offset, in_file, in_memory in self._segments:
            if start <= address and address + size <= start + in_memory:
                found = self.elf.data[
                    offset + address - start : offset + min(address + size - start, in_file)
                ]
                return found.ljust(size, b"\0")
        raise AuditError(f"{self.elf.where} is damaged: a pointer to {address:#x} leads nowhere")

    def pointer(self, address: int) -> int:
        """The pointer that lies at an address, 0 if it is null."""
        return self._pointers.get(address, 0)

    def string(self, address: int) -> str:
        """The C string at an address."""
        found = bytearray()
        for start, offset, in_file, _ in self._segments:
            if start <= address < start + in_file:
                begin = offset + address - start
                end = self.elf.data.find(b"\0", begin, min(offset + in_file, begin + _LONGEST_NAME))
                if end < 0:
                    break
                found += self.elf.data[begin:end]
                return found.decode("utf-8", "replace")
        raise AuditError(f"{self.elf.where} is damaged: a string at {address:#x} lies nowhere")
