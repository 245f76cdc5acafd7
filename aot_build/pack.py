"""The pack stage: one file per arch with every distinct cubin once, after the spec's claims are checked.

Format, version 1, little endian:

    0   "TBEAOTPK"
    8   u32 version, u32 blob count
    16  arch, 16 bytes, padded with zeros
    32  u64 size of the file
    40  per blob, sorted by hash: sha256 (32 bytes), u64 offset, u64 size
    ..  blobs, each starting at a multiple of 16

The index hash covers everything before the first blob, without padding.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from .archs import ARCHS
from .cache import CubinCache
from .cubin import CubinRecord
from .errors import BuildError
from .files import readable_json, sha256_hex, write_if_changed
from .machine_code import MachineCode, machine_code_of
from .plan import Plan
from .sass import sass_counts
from .verify import check_variant

MAGIC = b"TBEAOTPK"
VERSION = 1
HEADER = struct.Struct("<8sII16sQ")
ENTRY = struct.Struct("<32sQQ")
ALIGNMENT = 16


class PackReport(BaseModel):
    """What a pack holds, for the stages that follow."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arch: str
    file: str
    sha256: str
    index_sha256: str
    size: int
    blobs: list[str]
    records: dict[str, CubinRecord]
    machine_code: dict[str, MachineCode]

    def blob_of(self, variant: str) -> int:
        """The index of a variant's cubin, -1 when it was not built."""
        record = self.records.get(variant)
        return -1 if record is None else self.blobs.index(record.cubin_sha256)


@dataclass(frozen=True)
class PackIndex:
    """A pack's header and index: the arch, and per blob its sha256, offset and size."""

    arch: str
    file_size: int
    entries: list[tuple[str, int, int]]
    sha256: str


def encode_pack(arch: str, cubins: Mapping[str, bytes]) -> tuple[bytes, bytes]:
    """The index and the whole file for cubins by sha256."""
    offset = HEADER.size + ENTRY.size * len(cubins)
    entries = []
    blobs = bytearray()
    start = offset
    for sha256 in sorted(cubins):
        blobs += b"\0" * (-(start + len(blobs)) % ALIGNMENT)
        entries.append(ENTRY.pack(bytes.fromhex(sha256), start + len(blobs), len(cubins[sha256])))
        blobs += cubins[sha256]
    header = HEADER.pack(MAGIC, VERSION, len(cubins), arch.encode(), offset + len(blobs))
    index = header + b"".join(entries)
    return index, index + blobs


def decode_index(data: bytes) -> PackIndex:
    """Read the header and the index of a pack.

    Raises:
        BuildError: it is no pack, of another version, cut off, or an entry lies outside.
    """
    if len(data) < HEADER.size:
        raise BuildError(f"a pack of {len(data)} bytes is shorter than its header")
    magic, version, count, arch, file_size = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise BuildError(f"not a pack of version {VERSION}: {magic!r}, version {version}")
    end = HEADER.size + ENTRY.size * count
    if file_size != len(data) or end > len(data):
        raise BuildError(f"the pack says {file_size} bytes and {count} blobs, it has {len(data)}")
    entries = []
    for sha256, offset, size in ENTRY.iter_unpack(data[HEADER.size : end]):
        if offset < end or offset + size > file_size:
            raise BuildError(f"blob {sha256.hex()} lies outside the pack")
        entries.append((sha256.hex(), offset, size))
    return PackIndex(arch.rstrip(b"\0").decode(), file_size, entries, sha256_hex(data[:end]))


def read_reports(paths: Sequence[Path]) -> dict[str, PackReport]:
    """The reports of all packs by arch."""
    reports = [PackReport.model_validate_json(path.read_bytes()) for path in paths]
    return {report.arch: report for report in reports}


def read_results(paths: Sequence[Path]) -> dict[str, CubinRecord]:
    """The records of all batches by variant."""
    records = {}
    for path in paths:
        for name, record in json.loads(path.read_bytes())["records"].items():
            records[name] = CubinRecord.model_validate(record)
    return records


def pack_arch(
    plan: Plan, arch: str, results: Sequence[Path], cache: CubinCache, out: Path, report: Path
) -> None:
    """Check every variant of an arch, then write its pack and the report about it.

    Raises:
        BuildError: lists every contradiction between the specs and the cubins.
    """
    records = read_results(results)
    cubins = {
        sha256: cache.cubin(sha256)
        for sha256 in sorted({record.cubin_sha256 for record in records.values()})
    }
    counts = sass_counts(ARCHS[arch], list(cubins), cache)
    machine_code = {}
    problems = []
    for kernel in plan.kernels.values():
        for variant in kernel.variants:
            record = records.get(variant.name)
            if record is None:
                continue
            sha256 = record.cubin_sha256
            code = machine_code_of(ARCHS[arch], record, cubins[sha256], counts[sha256])
            machine_code[variant.name] = code
            found = check_variant(kernel, variant.builds[arch], record, code)
            problems += [f"{variant.name} on {arch}: {problem}" for problem in found]
    if problems:
        raise BuildError("\n".join(problems))
    index, data = encode_pack(arch, cubins)
    write_if_changed(out, data)
    document = PackReport(
        arch=arch,
        file=out.name,
        sha256=sha256_hex(data),
        index_sha256=sha256_hex(index),
        size=len(data),
        blobs=list(cubins),
        records=records,
        machine_code=machine_code,
    )
    write_if_changed(report, readable_json(document.model_dump()))
