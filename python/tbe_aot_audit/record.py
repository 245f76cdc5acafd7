"""RECORD: the list of a distribution's files with their hashes, which pip writes and wheels carry."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass

from .errors import AuditError
from .names import PACKAGES, module_of
from .source import Source

# What installers add to a .dist-info folder, some without a hash.
INSTALLERS = ("INSTALLER", "REQUESTED", "direct_url.json")
# Of lines; a wheel of this project has less than a hundred files.
MOST_ROWS = 10_000
_SIZE = re.compile(r"\d{1,15}", re.ASCII)


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
    rows: list[Row] = []
    try:
        for line in csv.reader(io.StringIO(data.decode())):
            if not line:
                continue
            if len(rows) == MOST_ROWS:
                raise AuditError(
                    f"{where} has more than {MOST_ROWS} lines: it is of no wheel of this project"
                )
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
            if size and not _SIZE.fullmatch(size):
                raise AuditError(f"{where}: the size of {name} is none: {size!r}")
            rows.append(Row(name, raw.hex(), int(size) if size else None))
    except (ValueError, csv.Error) as error:
        raise AuditError(f"{where} is damaged: {error}") from None
    return rows


def record_problems(source: Source, distribution: str) -> Iterator[tuple[str, str]]:
    """Files that are missing, changed or not listed: the file and a sentence.

    Of an installed package the package folders are looked at; compiled modules, whose hash no installer lists, are another check's
    (``unknown_modules``).

    Args:
        source: a wheel or an installed package.
        distribution: its ``.dist-info`` folder.

    Raises:
        AuditError: there is no RECORD, or it is damaged.
    """
    name = f"{distribution}/RECORD"
    rows = read_record(source.files.read(name), source.where(name))
    listed = Counter(row.name for row in rows)
    yield from ((file, "listed twice in RECORD") for file, times in listed.items() if times > 1)
    for row in rows:
        problem = "" if row.name == name else _row_problem(source, row, distribution, listed)
        if problem:
            yield row.name, problem
    wheel = source.kind == "wheel"
    for file in source.files.names() if wheel else source.files.names(*PACKAGES):
        if file not in listed and (wheel or module_of(file) not in listed):
            yield file, "RECORD does not name it"


def _row_problem(source: Source, row: Row, distribution: str, listed: Container[str]) -> str:
    """What is wrong with the file of a line, or nothing."""
    installed = source.kind == "package"
    compiled = installed and module_of(row.name) in listed
    if not row.sha256:
        own = row.name in {f"{distribution}/{file}" for file in INSTALLERS}
        return "" if installed and (compiled or own) else "RECORD has no hash of it"
    if not source.files.has(row.name):
        # Compiled modules come and go. A script lies outside of the packages, and not every installer says where.
        gone = compiled or (installed and row.name.startswith("../"))
        return "" if gone else "RECORD names it, but it is missing"
    try:
        size = len(source.files.read(row.name))
        same = source.files.sha256(row.name) == row.sha256 and row.size in {None, size}
    except AuditError as error:
        return str(error)
    return "" if same else "changed: its bytes are not those of RECORD"


def unknown_modules(source: Source, distribution: str) -> list[str]:
    """The compiled modules of an installed package of which RECORD has no hash: Python runs them, nothing says what they must be.

    Raises:
        AuditError: there is no RECORD, or it is damaged.
    """
    name = f"{distribution}/RECORD"
    hashed = {row.name for row in read_record(source.files.read(name), name) if row.sha256}
    files = source.files.names(*PACKAGES)
    return [file for file in files if module_of(file) is not None and file not in hashed]
