"""What a distribution says of itself: metadata, build record and bill of materials (the last two written by wheels/provenance.py)."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from .errors import AuditError
from .manifest import Manifest, Toolchain
from .names import PACKAGES, module_of
from .source import Source
from .text import read_json

SBOM = "sboms/tbe-aot.cdx.json"
BUILD_RECORD = "build_record.json"
RECORD_VERSION = 1
# What the bill cannot list: itself, and what is written after it (the platform's tag, the list of files).
UNLISTED = (SBOM, "RECORD", "WHEEL")
# The bill's serial number is a name in this space, made from its content.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "pkg:pypi/tbe-aot")


class _Sources(BaseModel):
    sha256: str
    revision: str | None


class _Native(BaseModel):
    compiler: str
    flags: list[str]
    torch: str
    pybind11: str | None


class Record(BaseModel):
    """The build record, as far as it is compared."""

    record_version: int
    version: str
    build_id: str
    profile: str
    source: _Sources
    kernels: Toolchain
    native: _Native


class _Hash(BaseModel):
    alg: str
    content: str


class _Component(BaseModel):
    type: str
    name: str
    version: str = ""
    hashes: list[_Hash] = []


class _Property(BaseModel):
    name: str
    value: str


class _Product(BaseModel):
    version: str
    properties: list[_Property]


class _Tools(BaseModel):
    components: list[_Component]


class _Metadata(BaseModel):
    tools: _Tools
    component: _Product


class Bill(BaseModel):
    """The bill of materials, as far as it is compared (CycloneDX)."""

    serialNumber: str  # noqa: N815 - CycloneDX' name
    metadata: _Metadata
    components: list[_Component]


_Model = TypeVar("_Model", bound=BaseModel)


def _path(source: Source, name: str) -> str:
    distribution = source.distribution
    if distribution is None:
        raise AuditError(
            f"{source} is no distribution, so it has no {name}: name a wheel or an installed package"
        )
    return f"{distribution}/{name}"


def _document(source: Source, name: str) -> dict[str, Any]:
    path = _path(source, name)
    found = read_json(source.files.read(path), source.where(path))
    if not isinstance(found, dict):
        raise AuditError(f"{source.where(path)} is damaged: it is no object")
    return found


def _parsed(source: Source, name: str, document: dict[str, Any], model: type[_Model]) -> _Model:
    try:
        return model.model_validate(document, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise AuditError(
            f"{source.where(_path(source, name))} is damaged: {place}: {first['msg']}"
        ) from None


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


def read_build_record(source: Source) -> Record:
    """The same, as far as it is compared.

    Raises:
        AuditError: it has none, a damaged one, or one of another version.
    """
    document = build_record(source)
    version = document.get("record_version")
    if version != RECORD_VERSION:
        raise AuditError(
            f"{BUILD_RECORD} is of version {version!r}, this tool reads {RECORD_VERSION}: use the tbe-aot-audit that came with that wheel"
        )
    return _parsed(source, BUILD_RECORD, document, Record)


def provenance_problems(source: Source, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Where record and bill contradict the manifest, each other or the files: the file and a sentence.

    Args:
        source: a wheel or an installed package.
        manifest: its manifest.

    Raises:
        AuditError: one of the two is missing or damaged.
    """
    record, document = read_build_record(source), bill_of_materials(source)
    bill = _parsed(source, SBOM, document, Bill)
    yield from _contradictions(source, manifest, record, bill)
    if bill.serialNumber != serial_number(document):
        yield SBOM, "changed: its serial number is not that of its content"
    yield from _file_problems(source, bill)


def serial_number(bill: dict[str, Any]) -> str:
    """The serial number that a bill of this content has."""
    rest = {name: value for name, value in bill.items() if name != "serialNumber"}
    return f"urn:uuid:{uuid.uuid5(_NAMESPACE, json.dumps(rest, sort_keys=True))}"


def _contradictions(
    source: Source, manifest: Manifest, record: Record, bill: Bill
) -> Iterator[tuple[str, str]]:
    tools = record.kernels
    made_by = {("triton", tools.triton), ("nvdisasm", tools.nvdisasm)}
    made_by |= {("ptxas", version) for version in tools.ptxas.values()}
    made_by |= {("nvrtc", tools.nvrtc)} if tools.nvrtc else set()
    made_by |= {("c++", record.native.compiler)}
    embedded = {"triton": tools.triton, "torch": record.native.torch, "pybind11": record.native.pybind11}  # fmt: skip
    found = {entry.name: entry.value for entry in bill.metadata.component.properties}
    versions = {part.name: part.version for part in bill.components if part.version}
    says = {
        (BUILD_RECORD, "the build", "the manifest"): (record.build_id, manifest.build_id),
        (BUILD_RECORD, "the profile", "the manifest"): (record.profile, manifest.profile),
        (BUILD_RECORD, "the tools of the kernels", "the manifest"): (tools, manifest.toolchain),
        (BUILD_RECORD, "the version", "the .dist-info folder"): (
            f"tbe_aot-{record.version}.dist-info",
            source.distribution,
        ),
        (SBOM, "the version", BUILD_RECORD): (bill.metadata.component.version, record.version),
        (SBOM, "the tools", BUILD_RECORD): (
            sorted((tool.name, tool.version) for tool in bill.metadata.tools.components),
            sorted(made_by),
        ),
        (SBOM, "what is embedded", BUILD_RECORD): (
            versions,
            {name: version or "unknown" for name, version in embedded.items()},
        ),
        (SBOM, "the properties", BUILD_RECORD): (
            found,
            {
                "tbe-aot:build_id": record.build_id,
                "tbe-aot:profile": record.profile,
                "tbe-aot:source_sha256": record.source.sha256,
                "tbe-aot:revision": record.source.revision or "unknown",
            },
        ),
    }
    for (file, what, other), (here, there) in says.items():
        if here != there:
            yield file, f"it contradicts {other} in {what}: {here} and {there}"


def _file_problems(source: Source, bill: Bill) -> Iterator[tuple[str, str]]:
    """Every file is in the bill, with its hash."""
    files = [part for part in bill.components if part.type == "file"]
    listed = Counter(part.name for part in files)
    yield from ((name, f"{SBOM} names it twice") for name, times in listed.items() if times > 1)
    for part in files:
        hashes = {entry.alg: entry.content for entry in part.hashes}
        if not source.files.has(part.name):
            yield part.name, f"{SBOM} names it, but it is missing"
        elif source.files.sha256(part.name) != hashes.get("SHA-256"):
            yield part.name, f"its SHA-256 is not that of {SBOM}"
    for name in shipped(source):
        if name not in listed:
            yield name, f"{SBOM} does not name it"


def shipped(source: Source) -> list[str]:
    """The files that the bill must name; of an installed package those of the package folders, where installers add nothing else."""
    if source.kind == "package":
        return [name for name in source.files.names(*PACKAGES) if module_of(name) is None]
    own = {_path(source, name) for name in UNLISTED}
    return [name for name in source.files.names() if name not in own]


def metadata_problems(source: Source, distribution: str) -> Iterator[tuple[str, str]]:
    """What a ``.dist-info`` folder of this project must hold and say, besides what is compared by hash: the file and a sentence."""
    metadata = _fields(source, f"{distribution}/METADATA")
    licences = [f"licenses/{file}" for file in metadata.get("License-File", [])]
    if metadata.get("Name") != ["tbe-aot"]:
        yield f"{distribution}/METADATA", f"it is of {metadata.get('Name', [])}, not of tbe-aot"
    if not licences:
        yield f"{distribution}/METADATA", "it names no licence"
    for name in (BUILD_RECORD, SBOM, "entry_points.txt", *licences):
        if not source.files.has(f"{distribution}/{name}"):
            yield f"{distribution}/{name}", "every wheel of this project has it, but it is missing"
    wheel = _fields(source, f"{distribution}/WHEEL")
    expected = {"Wheel-Version": ["1.0"], "Root-Is-Purelib": ["false"]}
    for field, values in expected.items():
        if wheel.get(field) != values:
            yield f"{distribution}/WHEEL", f"{field} is {wheel.get(field)}, not {values}"
    if not wheel.get("Tag") or wheel.keys() - {*expected, "Tag", "Generator"}:
        yield f"{distribution}/WHEEL", f"it has the fields {', '.join(sorted(wheel))}"


def _fields(source: Source, name: str) -> dict[str, list[str]]:
    """The header of a metadata file: the values of each field."""
    found: dict[str, list[str]] = {}
    for line in source.files.read(name).decode("utf-8", "replace").splitlines():
        field, colon, value = line.partition(": ")
        if not colon:
            break
        found.setdefault(field, []).append(value)
    return found
