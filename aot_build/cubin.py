"""Reading cubins: what NVIDIA's tools and the ELF header say about one."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from .errors import BuildError
from .files import sha256_hex
from .toolchain import run_tool

_SECTION_WITHOUT_BYTES = 8  # SHT_NOBITS
_EIFMT_SVAL = 4
_EIATTR_NUM_BARRIERS = 0x4C


class CubinParam(BaseModel):
    """A parameter as the cubin declares it, in bytes."""

    model_config = ConfigDict(frozen=True)

    ordinal: int
    offset: int
    size: int


class CubinRecord(BaseModel):
    """What is known about one compiled cubin; sizes in bytes, registers per thread."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cubin_sha256: str
    cubin_bytes: int
    entry: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    static_shared_bytes: int
    num_warps: int
    elf_abi: str
    params: list[CubinParam]


def elf_abi(cubin: bytes) -> str:
    """OS ABI and ABI version of the ELF header, such as 51/7: what a driver must know to load it."""
    if len(cubin) < 64 or cubin[:4] != b"\x7fELF":
        raise BuildError("not an ELF file")
    return f"{cubin[7]}/{cubin[8]}"


class Section(NamedTuple):
    """A section of an ELF file."""

    name: str
    flags: int
    data: bytes


def sections(cubin: bytes) -> Iterator[Section]:
    """The sections of a cubin; those without bytes in the file are empty."""
    (section_table,) = struct.unpack_from("<Q", cubin, 40)
    entry_size, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    # name, type, flags, address, offset, size, link, info, alignment, entry size
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", cubin, section_table + index * entry_size)
        for index in range(count)
    ]
    names = headers[names_index][4]
    for header in headers:
        start = names + header[0]
        name = cubin[start : cubin.index(b"\0", start)].decode()
        end = header[4] + (0 if header[1] == _SECTION_WITHOUT_BYTES else header[5])
        yield Section(name, header[2], cubin[header[4] : end])


def _text(cubin: bytes) -> Section:
    found = [section for section in sections(cubin) if section.name.startswith(".text.")]
    if len(found) != 1:
        raise BuildError(f"expected one .text section, found {len(found)}")
    return found[0]


def text_section(cubin: bytes) -> bytes:
    """The machine code: the one ``.text`` section of the kernel."""
    return _text(cubin).data


def named_barriers(cubin: bytes) -> int:
    """How many of a block's 16 barriers the kernel uses: in the code's section flags, on newer archs an attribute of the kernel."""
    text = _text(cubin)
    info = text.name.replace(".text.", ".nv.info.", 1)
    for section in sections(cubin):
        if section.name != info:
            continue
        # Attributes: format, code, and a value in place (16 bits) or, with format 4, the size of what follows.
        position = 0
        while position + 4 <= len(section.data):
            layout, code, value = struct.unpack_from("<BBH", section.data, position)
            if code == _EIATTR_NUM_BARRIERS:
                return int(value & 0xFF)
            position += 4 + (value if layout == _EIFMT_SVAL else 0)
    return text.flags >> 20 & 0x7F


def parse_params(elf_dump: str) -> list[CubinParam]:
    """The parameters in ``cuobjdump -elf`` (EIATTR_KPARAM_INFO), by ordinal."""
    pattern = r"Ordinal\s*:\s*0x([0-9a-f]+)\s+Offset\s*:\s*0x([0-9a-f]+)\s+Size\s*:\s*0x([0-9a-f]+)"
    found = [
        CubinParam(ordinal=int(ordinal, 16), offset=int(offset, 16), size=int(size, 16))
        for ordinal, offset, size in re.findall(pattern, elf_dump)
    ]
    return sorted(found, key=lambda param: param.ordinal)


def parse_resource_usage(text: str) -> dict[str, int]:
    """REG, STACK, SHARED ... of ``cuobjdump -res-usage`` for a cubin with one kernel."""
    usage = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED):(\d+)", text)}
    if set(usage) != {"REG", "STACK", "SHARED"}:
        raise BuildError(f"cuobjdump does not say what the kernel uses: {text!r}")
    return usage


def parse_spill_bytes(ptxas_log: str) -> int:
    """Spill stores and loads in ptxas' own log; nothing else tells them."""
    found = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", ptxas_log)
    if not found:
        raise BuildError(f"ptxas did not report spills: {ptxas_log!r}")
    return sum(int(stores) + int(loads) for stores, loads in found)


def read_params(path: Path) -> list[CubinParam]:
    """The parameters that a cubin declares."""
    return parse_params(run_tool("cuobjdump", "-elf", path))


def read_resource_usage(path: Path) -> dict[str, int]:
    """The resources that a cubin's kernel uses."""
    return parse_resource_usage(run_tool("cuobjdump", "-res-usage", path))


def record_of(
    cubin: bytes, scratch: Path, *, entry: str, shared_bytes: int, num_warps: int, ptxas_log: str
) -> CubinRecord:
    """Read everything that a record says from a cubin, and the spills from the log of its assembler.

    Args:
        cubin: the cubin's bytes.
        scratch: a folder for the file that the tools read.
        entry: the kernel's name in the cubin.
        shared_bytes: dynamic shared memory, which the launcher must ask for.
        num_warps: warps of a block.
        ptxas_log: what ptxas said with ``-v``.

    Raises:
        BuildError: the cubin or the log does not say what it should.
    """
    path = scratch / "kernel.cubin"
    path.write_bytes(cubin)
    usage = read_resource_usage(path)
    return CubinRecord(
        cubin_sha256=sha256_hex(cubin),
        cubin_bytes=len(cubin),
        entry=entry,
        registers=usage["REG"],
        spill_bytes=parse_spill_bytes(ptxas_log),
        stack_bytes=usage["STACK"],
        shared_bytes=shared_bytes,
        static_shared_bytes=usage["SHARED"],
        num_warps=num_warps,
        elf_abi=elf_abi(cubin),
        params=read_params(path),
    )
