"""What a cubin says about itself: arch, ABI, parameters, resources. Read from its bytes, without a tool."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .elf import CUDA, Elf, Section
from .errors import AuditError

# Attributes in .nv.info sections ("EIATTR"), as cuobjdump -elf names them.
_MAX_THREADS = 0x05
_REQUIRED_THREADS = 0x10
_MIN_STACK_SIZE = 0x12
_KPARAM_INFO = 0x17
_REGCOUNT = 0x2F
_CUDA_API_VERSION = 0x37
_NUM_BARRIERS = 0x4C
# The layout of an attribute's value: in place (1 to 3), or as many bytes as the value says.
_SIZED = 4
# e_flags: from ABI version 8 on the compute capability is in the second byte.
_NEW_FLAGS = 8


@dataclass(frozen=True)
class Cubin:
    """One cubin with one kernel; sizes in bytes, registers per thread.

    ``capability`` is 90 for compute capability 9.0; ``specific`` says that it runs on that one alone (``sm_90a``). ``toolkit`` is the
    CUDA version of its assembler, 129 for 12.9. ``block`` is the number of threads that the kernel was compiled for, at most that many
    if not ``exact``; 0 if the cubin does not say.
    """

    capability: int
    specific: bool
    elf_abi: str
    toolkit: int
    entry: str
    params: tuple[tuple[int, int], ...]
    registers: int
    stack_bytes: int
    static_shared_bytes: int
    barriers: int
    block: int
    exact: bool
    code_bytes: int


class _Attribute(NamedTuple):  # Made forty times a cubin: a dataclass takes three times as long.
    code: int
    value: int
    data: bytes


def _attributes(section: Section | None, where: str) -> Iterator[_Attribute]:
    data = b"" if section is None else section.data
    position = 0
    while position + 4 <= len(data):
        layout, code, value = struct.unpack_from("<BBH", data, position)
        position += 4
        size = value if layout == _SIZED else 0
        if position + size > len(data):
            raise AuditError(f"{where} is damaged: an attribute of its kernel is cut off")
        yield _Attribute(code, value, data[position : position + size])
        position += size


def _product(data: bytes) -> int:
    x, y, z = struct.unpack_from("<III", data.ljust(12, b"\0"))
    return int(x * max(y, 1) * max(z, 1))


def read_cubin(data: bytes, where: str) -> Cubin:
    """Read a cubin.

    Args:
        data: its bytes.
        where: what to call it in errors.

    Raises:
        AuditError: it is no cubin with one kernel.
    """
    elf = Elf(data, where)
    if elf.machine != CUDA:
        raise AuditError(f"{where} is no cubin: its ELF machine is {elf.machine}, not {CUDA}")
    texts = [section for section in elf.sections if section.name.startswith(".text.")]
    if len(texts) != 1:
        raise AuditError(f"{where} holds {len(texts)} kernels, one is expected")
    (text,) = texts
    entry = text.name.removeprefix(".text.")
    symbol = text.info & 0xFFFFFF
    totals = {
        attribute.code: struct.unpack_from("<I", attribute.data, 4)[0]
        for attribute in _attributes(elf.section(".nv.info"), where)
        if len(attribute.data) >= 8 and struct.unpack_from("<I", attribute.data)[0] == symbol
    }
    own = list(_attributes(elf.section(f".nv.info.{entry}"), where))
    params = {}
    for attribute in own:
        if attribute.code == _KPARAM_INFO and len(attribute.data) >= 12:
            _, ordinal, offset, rest = struct.unpack_from("<IHHI", attribute.data)
            params[ordinal] = (offset, rest >> 18)
    values = {attribute.code: attribute for attribute in own}
    shared = elf.section(f".nv.shared.{entry}")
    in_flags = text.flags >> 20 & 0x7F
    toolkit = values.get(_CUDA_API_VERSION)
    exact = _REQUIRED_THREADS in values
    block = values.get(_REQUIRED_THREADS) or values.get(_MAX_THREADS)
    new = elf.abi_version >= _NEW_FLAGS
    return Cubin(
        capability=elf.flags >> 8 & 0xFF if new else elf.flags & 0xFF,
        specific=bool(elf.flags & (0x8 if new else 0x800)),
        elf_abi=f"{elf.os_abi}/{elf.abi_version}",
        toolkit=0 if toolkit is None else int.from_bytes(toolkit.data[:4], "little"),
        entry=entry,
        params=tuple(params[ordinal] for ordinal in sorted(params)),
        registers=totals.get(_REGCOUNT, 0),
        stack_bytes=totals.get(_MIN_STACK_SIZE, 0),
        static_shared_bytes=0 if shared is None else shared.size,
        barriers=values[_NUM_BARRIERS].value & 0xFF if _NUM_BARRIERS in values else in_flags,
        block=0 if block is None else _product(block.data),
        exact=exact,
        code_bytes=len(text.data),
    )
