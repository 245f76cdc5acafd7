"""What a wheel says of its own making is true, complete and in the form that others read."""

from __future__ import annotations

import importlib.metadata
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tbe_aot_audit.source import open_source
from tbe_aot_audit.verify import verify
from tests.wheel.conftest import ROOT
from wheels import audit_wheel, provenance

# The first fixture builds a wheel.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def member(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (found,) = (entry for entry in archive.namelist() if entry.endswith(f".dist-info/{name}"))
        return archive.read(found)


@pytest.fixture(scope="module")
def bill(wheel: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(member(wheel, provenance.SBOM_FILE))
    return found


def test_the_wheel_is_what_was_built(wheel: Path):
    result = verify(open_source(wheel))
    findings = [finding for check in result.checks for finding in check.findings]
    assert not findings
    statuses = {check.name: check.status for check in result.checks}
    assert {name for name, status in statuses.items() if status != "passed"} == {
        "hash",
        "bytecode",
        "artifacts",
    }
    assert result.unchecked == []


def test_the_bill_of_materials_is_valid_cyclonedx(wheel: Path):
    text = member(wheel, provenance.SBOM_FILE).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_the_bill_names_what_is_shipped_embedded_and_required(wheel: Path, bill: dict[str, Any]):
    names = {component["name"] for component in bill["components"]}
    assert {"pybind11", "torch", "triton", "rich", "typer", "pydantic"} <= names
    with zipfile.ZipFile(wheel) as archive:
        files = {entry.filename for entry in archive.infolist() if not entry.is_dir()}
    own = {name for name in files if name.partition(".dist-info/")[2] in provenance.UNLISTED}
    assert len(own) == 3
    assert {c["name"] for c in bill["components"] if c["type"] == "file"} == files - own
    versions = {c["name"]: c.get("version") for c in bill["components"]}
    assert versions["triton"] == importlib.metadata.version("triton")
    assert versions["pybind11"] == importlib.metadata.version("pybind11")


def test_the_record_names_tools_compiler_and_sources(wheel: Path):
    record = json.loads(member(wheel, provenance.RECORD_FILE))
    assert record["kernels"]["triton"] == importlib.metadata.version("triton")
    assert set(record["kernels"]["ptxas"]) == {"sm90", "sm100"}
    assert record["native"]["compiler"]
    assert "-O2" in record["native"]["flags"]
    assert record["source"]["sha256"] == provenance.source_hash()


def test_the_record_names_the_commit(wheel: Path, bill: dict[str, Any]):
    commit = provenance.revision()
    record = json.loads(member(wheel, provenance.RECORD_FILE))
    assert record["source"]["revision"] == commit
    properties = {p["name"]: p["value"] for p in bill["metadata"]["component"]["properties"]}
    assert properties["tbe-aot:revision"] == (commit or "unknown")


@pytest.mark.parametrize("part", provenance.EMBEDDED, ids=lambda part: part.distribution)
def test_the_licence_of_what_is_embedded_is_there(wheel: Path, part: provenance.Embedded):
    text = member(wheel, f"licenses/licenses/{part.text}")
    assert text == (ROOT / "licenses" / part.text).read_bytes()
    distribution = importlib.metadata.distribution(part.distribution)
    own = distribution.read_text("licenses/LICENSE") or distribution.read_text("LICENSE")
    assert own is not None
    assert text.decode().strip() == own.strip()


def test_every_file_has_the_permissions_of_a_build(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        modes = {
            entry.filename: entry.external_attr >> 16 & 0o777
            for entry in archive.infolist()
            if not entry.is_dir() and not entry.filename.endswith("/RECORD")
        }
    assert {mode for name, mode in modes.items() if name.endswith(".so")} == {0o755}
    assert {mode for name, mode in modes.items() if not name.endswith(".so")} == {0o644}


def test_the_audit_alone_is_a_pure_wheel(tmp_path: Path):
    built = audit_wheel.build(tmp_path)
    assert built.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(built) as archive:
        names = {name for name in archive.namelist() if name.startswith("tbe_aot_audit/")}
    sources = (ROOT / "python" / "tbe_aot_audit").rglob("*")
    expected = {
        path.relative_to(ROOT / "python").as_posix()
        for path in sources
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names == expected
    assert built.stat().st_size < 200_000


def test_both_wheels_have_one_version():
    own, audit = (
        (folder / "pyproject.toml").read_text() for folder in (ROOT, ROOT / "wheels" / "audit")
    )

    def version(text: str) -> str:
        return next(line for line in text.splitlines() if line.startswith("version = "))

    assert version(own) == version(audit)
