"""Reading packs: the file with all cubins of one arch (format: aot_build/pack.py)."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from .errors import AuditError

MAGIC = b"TBEAOTPK"
VERSION = 1
_HEADER = struct.Struct("<8sII16sQ")
_ENTRY = struct.Struct("<32sQQ")
ALIGNMENT = 16


@dataclass(frozen=True)
class Blob:
    """One cubin in a pack."""

    sha256: str
    offset: int
    size: int


@dataclass(frozen=True)
class Pack:
    """A pack: its arch, its cubins, and the hash of header and index, which the library knows."""

    where: str
    arch: str
    data: bytes
    blobs: tuple[Blob, ...]
    index_sha256: str

    def cubin(self, blob: int) -> bytes:
        """The bytes of a cubin, as they are.

        Raises:
            AuditError: the pack has no such cubin.
        """
        if not 0 <= blob < len(self.blobs):
            raise AuditError(
                f"{self.where} has {len(self.blobs)} cubins, there is no number {blob}"
            )
        found = self.blobs[blob]
        return self.data[found.offset : found.offset + found.size]

    def changed(self) -> list[int]:
        """The cubins that do not have the hash of the index."""
        return [
            number
            for number, blob in enumerate(self.blobs)
            if hashlib.sha256(self.cubin(number)).hexdigest() != blob.sha256
        ]

    def stray_bytes(self) -> list[tuple[int, int]]:
        """Stretches between cubins that a build would have left zero or would not have made: begin and end."""
        found = []
        end = _HEADER.size + _ENTRY.size * len(self.blobs)
        for blob in sorted(self.blobs, key=lambda blob: blob.offset):
            gap = self.data[end : blob.offset]
            if any(gap) or len(gap) >= ALIGNMENT or blob.offset < end:
                found.append((min(end, blob.offset), max(end, blob.offset)))
            end = blob.offset + blob.size
        if end != len(self.data):
            found.append((end, len(self.data)))
        return found


def parse_pack(data: bytes, where: str) -> Pack:
    """Read header and index of a pack; the cubins are not looked at.

    Args:
        data: the file's bytes.
        where: what to call it in errors.

    Raises:
        AuditError: it is no pack, of another version, truncated, or an entry lies outside.
    """
    if len(data) < _HEADER.size:
        raise AuditError(f"{where} is truncated: {len(data)} bytes are less than a pack's header")
    magic, version, count, arch, size = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise AuditError(f"{where} is no pack: it starts with {magic!r}")
    if version != VERSION:
        raise AuditError(f"{where} has pack format {version}, this tool reads {VERSION}")
    if size != len(data):
        truncated = "is truncated" if len(data) < size else "is damaged"
        raise AuditError(f"{where} {truncated}: it has {len(data)} bytes, its header says {size}")
    end = _HEADER.size + _ENTRY.size * count
    if end > size:
        raise AuditError(f"{where} is damaged: an index of {count} cubins is longer than the file")
    blobs = []
    for sha256, offset, length in _ENTRY.iter_unpack(data[_HEADER.size : end]):
        if offset < end or offset + length > size or offset % ALIGNMENT:
            raise AuditError(
                f"{where} is damaged: cubin {sha256.hex()} lies at {offset}, outside or unaligned"
            )
        blobs.append(Blob(sha256.hex(), offset, length))
    if sum(blob.size for blob in blobs) > size - end:
        raise AuditError(f"{where} is damaged: its cubins overlap")
    return Pack(
        where=where,
        arch=arch.rstrip(b"\0").decode("ascii", "replace"),
        data=data,
        blobs=tuple(blobs),
        index_sha256=hashlib.sha256(data[:end]).hexdigest(),
    )
