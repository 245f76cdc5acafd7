"""What a distribution says of its own making: the build record and the bill of materials, written by wheels/provenance.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from .errors import AuditError
from .source import Source

SBOM = "sboms/tbe-aot.cdx.json"
BUILD_RECORD = "build_record.json"


def _document(source: Source, name: str) -> dict[str, Any]:
    distribution = source.distribution
    if distribution is None:
        raise AuditError(
            f"{source} is no distribution, so it has no {name}: name a wheel or an installed package"
        )
    path = f"{distribution}/{name}"
    try:
        found = json.loads(source.files.read(path))
    except (ValueError, RecursionError) as error:
        raise AuditError(f"{source.where(path)} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise AuditError(f"{source.where(path)} is damaged: it is no object")
    return found


def bill_of_materials(source: Source) -> dict[str, Any]:
    """The bill of materials of a wheel or an installed package (CycloneDX).

    Raises:
        AuditError: it has none, or a damaged one.
    """
    return _document(source, SBOM)


def build_record(source: Source) -> dict[str, Any]:
    """The build record of a wheel or an installed package.

    Raises:
        AuditError: it has none, or a damaged one.
    """
    return _document(source, BUILD_RECORD)


def provenance_problems(source: Source, build_id: str) -> Iterator[tuple[str, str]]:
    """Where record and bill contradict the files: the file and a sentence.

    Args:
        source: a wheel or an installed package.
        build_id: of its manifest.

    Raises:
        AuditError: one of the two is missing or damaged.
    """
    record, bill = build_record(source), bill_of_materials(source)
    if record.get("build_id") != build_id:
        yield BUILD_RECORD, f"it is of build {record.get('build_id')}, the manifest of {build_id}"
    for component in bill.get("components", []):
        if component.get("type") != "file":
            continue
        name = component.get("name", "")
        hashes = {entry.get("alg"): entry.get("content") for entry in component.get("hashes", [])}
        if not source.files.has(name):
            yield name, f"{SBOM} names it, but it is missing"
        elif hashlib.sha256(source.files.read(name)).hexdigest() != hashes.get("SHA-256"):
            yield name, f"its SHA-256 is not that of {SBOM}"
