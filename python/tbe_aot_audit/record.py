"""RECORD: the list of a distribution's files with their hashes, which pip writes and wheels carry."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import AuditError
from .source import Source

# pip adds these when it installs; RECORD names them then, without or with a hash.
SIGNATURES = (".jws", ".p7s")


@dataclass(frozen=True)
class Row:
    """One line: a file, its sha256 in hexadecimal and its size; both empty where RECORD has none."""

    name: str
    sha256: str
    size: int | None


def read_record(data: bytes, where: str) -> list[Row]:
    """The lines of a RECORD.

    Raises:
        AuditError: a line is none, or a hash is no sha256.
    """
    rows = []
    try:
        for line in csv.reader(io.StringIO(data.decode())):
            if not line:
                continue
            name, digest, size = line
            kind, _, value = digest.partition("=")
            if digest and kind != "sha256":
                raise AuditError(f"{where}: {name} has a hash of kind {kind!r}, sha256 is expected")
            raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
            # The bits that base64 leaves over must be zero, else two texts stand for one hash.
            if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != value or len(raw) not in {
                0,
                32,
            }:
                raise AuditError(f"{where}: the hash of {name} is none: {value!r}")
            rows.append(Row(name, raw.hex(), int(size) if size else None))
    except (ValueError, csv.Error) as error:
        raise AuditError(f"{where} is damaged: {error}") from None
    return rows


def record_problems(source: Source, distribution: str) -> Iterator[tuple[str, str]]:
    """Files that are missing, changed or not listed: the file and a sentence.

    Args:
        source: a wheel or an installed package.
        distribution: its ``.dist-info`` folder.

    Raises:
        AuditError: there is no RECORD, or it is damaged.
    """
    name = f"{distribution}/RECORD"
    rows = read_record(source.files.read(name), source.where(name))
    listed = [row.name for row in rows]
    for twice in sorted({file for file in listed if listed.count(file) > 1}):
        yield twice, "listed twice in RECORD"
    for row in rows:
        if row.name == name or row.name.endswith((".pyc", *SIGNATURES)):
            continue
        if not row.sha256:
            # pip hashes what it installs, but not what it makes, such as INSTALLER in old versions.
            if source.kind == "wheel":
                yield row.name, "RECORD has no hash of it"
            continue
        if not source.files.has(row.name):
            yield row.name, "RECORD names it, but it is missing"
            continue
        try:
            data = source.files.read(row.name)
        except AuditError as error:
            yield row.name, str(error)
            continue
        if hashlib.sha256(data).hexdigest() != row.sha256 or row.size not in {None, len(data)}:
            yield row.name, "changed: its bytes are not those of RECORD"
    if source.kind == "wheel":
        for file in source.files.names():
            if file not in listed:
                yield file, "RECORD does not name it"
