"""What a wheel says of its own making: a build record, and a bill of materials (CycloneDX 1.6).

setup.py writes both into the ``.dist-info`` folder, the bill where PEP 770 wants it. The bill is the last: it has the hash of every file but
itself and those that are written after it. Neither has a time or a path in it, and the bill's serial
number is made from its content, so that equal sources give equal wheels. The bill is plain JSON, written here rather than by
cyclonedx-python-lib because a wheel's build should need as little as it can; a test holds it against that library's schema.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SBOM_FILE = "sboms/tbe-aot.cdx.json"
RECORD_FILE = "build_record.json"
# Of the record; raised when a field changes its meaning.
RECORD_VERSION = 1
# What an sdist says of itself: the hash of its sources, and the commit that they are of.
REVISION_FILE = "REVISION"
DIRTY = "-dirty"
# The time of a wheel's files unless SOURCE_DATE_EPOCH names another: 2026-01-01. A constant, because what a commit or a file says of its
# time gets lost on some way from a checkout to a wheel, and with it would the wheel's bytes change.
WHEEL_TIME = 1767225600
# What the bill cannot have a hash of: itself, the list of all files, and what auditwheel changes (the platform's tag).
UNLISTED = (SBOM_FILE, "RECORD", "WHEEL")
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "pkg:pypi/tbe-aot")

# What wheels are made of, relative to the project's folder, without what a build leaves there.
SOURCES = (
    *("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "licenses"),
    *("aot_build", "csrc_launcher", "kernel_specs", "python", "wheels/provenance.py"),
)
GENERATED = re.compile(r"__pycache__|\.egg-info|/tbe_aot/lib/|\.so$|\.pyc$|_operator_rules\.py$")


@dataclass(frozen=True)
class Embedded:
    """Code of others that is compiled into the wheel: its licence, and what of it is there."""

    distribution: str
    licence: str
    what: str
    text: str


EMBEDDED = (
    Embedded("pybind11", "BSD-3-Clause", "headers, compiled into _launcher", "pybind11.txt"),
    Embedded("torch", "BSD-3-Clause", "stable ABI headers, compiled into libtbe_aot.so", "torch.txt"),
    Embedded("triton", "MIT", "functions of triton.language, compiled into cubins", "triton.txt"),
)  # fmt: skip


def source_hash(root: Path = ROOT) -> str:
    """A hash over the names and bytes of all sources, the same in a checkout and in a copy of it."""
    found = []
    for name in SOURCES:
        place = root / name
        paths = place.rglob("*") if place.is_dir() else [place]
        found += [path for path in paths if path.is_file()]
    named = {path.relative_to(root).as_posix(): path for path in found}
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n"
        for name, path in sorted(named.items())
        if not GENERATED.search(f"/{name}")
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def revision(root: Path = ROOT) -> str | None:
    """The commit that the sources are of, with ``-dirty`` behind it if something was changed since; None if nothing tells.

    A checkout is clean if git sees neither a changed file nor a new one that it does not ignore. An sdist carries the answer, and is clean
    if its sources have the hash that they had when it was made.
    """
    if (root / ".git").exists():
        try:
            commit = _git(root, "rev-parse", "HEAD")
            changed = _git(root, "status", "--porcelain") != ""
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or error
            print(f"tbe-aot: the build record names no commit: git in {root}: {said}", file=sys.stderr)  # fmt: skip
            return None
    elif (root / REVISION_FILE).is_file():
        sha256, commit = (root / REVISION_FILE).read_text().split()
        changed = sha256 != source_hash(root)
    else:
        return None
    return f"{commit.removesuffix(DIRTY)}{DIRTY}" if changed else commit


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def carry_revision(commit: str | None, folder: Path) -> None:
    """Let the folder that becomes an sdist say which commit it is of, if anything tells."""
    if commit is not None:
        (folder / REVISION_FILE).write_text(f"{source_hash(folder)} {commit}\n")


def compiler_version(command: str) -> str:
    """What the C++ compiler calls itself."""
    done = subprocess.run([*command.split(), "--version"], capture_output=True, text=True, check=True)  # fmt: skip
    return done.stdout.splitlines()[0].strip()


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def build_record(
    manifest: Mapping[str, Any],
    *,
    wheel_version: str,
    torch: str,
    compiler: str,
    flags: Iterable[str],
) -> dict[str, Any]:
    """The build record.

    Args:
        manifest: of the artifacts.
        wheel_version: of the project.
        torch: the version whose headers the native parts are compiled with.
        compiler: the command of the C++ compiler.
        flags: what it is told besides paths.
    """
    return {
        "record_version": RECORD_VERSION,
        "version": wheel_version,
        "build_id": manifest["build_id"],
        "profile": manifest["profile"],
        "source": {
            "sha256": source_hash(),
            "revision": revision(),
        },
        "kernels": manifest["toolchain"],
        "native": {
            "compiler": compiler_version(compiler),
            "flags": list(flags),
            "torch": torch,
            "pybind11": _installed("pybind11"),
        },
    }


def bill_of_materials(
    record: Mapping[str, Any], files: Mapping[str, str], requirements: Iterable[str]
) -> dict[str, Any]:
    """The bill of materials.

    Args:
        record: the build record.
        files: what is shipped, with its sha256.
        requirements: what pip installs beside the wheel.
    """
    name = f"pkg:pypi/tbe-aot@{record['version']}"
    tools = record["kernels"]
    versions = {
        "pybind11": record["native"]["pybind11"],
        "torch": record["native"]["torch"],
        "triton": tools["triton"],
    }
    embedded = [
        {
            "type": "library",
            "bom-ref": f"embedded:{part.distribution}",
            "name": part.distribution,
            "version": versions[part.distribution] or "unknown",
            "purl": f"pkg:pypi/{part.distribution}@{(versions[part.distribution] or '').partition('+')[0]}",
            "licenses": [{"license": {"id": part.licence}}],
            "description": part.what,
        }
        for part in EMBEDDED
    ]
    shipped = [
        {
            "type": "file",
            "bom-ref": f"file:{file}",
            "name": file,
            "hashes": [{"alg": "SHA-256", "content": sha256}],
            # The texts of licences are others' work.
            **(
                {} if ".dist-info/" in file else {"licenses": [{"license": {"id": "BSD-3-Clause"}}]}
            ),
        }
        for file, sha256 in sorted(files.items())
    ]
    required = [
        {
            "type": "library",
            "bom-ref": f"required:{requirement}",
            "name": re.split(r"[<>=!~ ;\[]", requirement, maxsplit=1)[0],
            "scope": "required",
            "description": f"installed beside the wheel: {requirement}",
        }
        for requirement in requirements
    ]
    made_by = [
        ("triton", tools["triton"]),
        *sorted({("ptxas", found) for found in tools["ptxas"].values()}),
        ("nvdisasm", tools["nvdisasm"]),
        *([("nvrtc", tools["nvrtc"])] if tools.get("nvrtc") else []),
        ("c++", record["native"]["compiler"]),
    ]
    bill: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {
                "components": [
                    {"type": "application", "name": tool, "version": found}
                    for tool, found in made_by
                ]
            },
            "component": {
                "type": "library",
                "bom-ref": name,
                "name": "tbe-aot",
                "version": record["version"],
                "purl": name,
                "licenses": [{"license": {"id": "BSD-3-Clause"}}],
                "properties": [
                    {"name": "tbe-aot:build_id", "value": record["build_id"]},
                    {"name": "tbe-aot:profile", "value": record["profile"]},
                    {"name": "tbe-aot:source_sha256", "value": record["source"]["sha256"]},
                    {
                        "name": "tbe-aot:revision",
                        "value": record["source"]["revision"] or "unknown",
                    },
                ],
            },
        },
        "components": [*embedded, *shipped, *required],
        "dependencies": [
            {
                "ref": name,
                "dependsOn": [part["bom-ref"] for part in (*embedded, *shipped, *required)],
            }
        ],
    }
    serial = uuid.uuid5(NAMESPACE, json.dumps(bill, sort_keys=True))
    return {**bill, "serialNumber": f"urn:uuid:{serial}"}


def file_hashes(root: Path, dist_info: Path) -> dict[str, str]:
    """The sha256 of every file of an unpacked wheel that the bill names, by its path there."""
    unlisted = {dist_info / name for name in UNLISTED}
    paths = sorted(path for path in root.rglob("*") if path.is_file() and path not in unlisted)
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def write(
    root: Path, dist_info: Path, record: Mapping[str, Any], requirements: Iterable[str]
) -> None:
    """Write both into an unpacked wheel.

    Args:
        root: where it is unpacked, complete but for RECORD.
        dist_info: its ``.dist-info`` folder.
        record: the build record.
        requirements: what pip installs beside the wheel.
    """
    _write(dist_info / RECORD_FILE, record)
    bill = bill_of_materials(record, file_hashes(root, dist_info), requirements)
    _write(dist_info / SBOM_FILE, bill)


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    # For the Makefile: another commit gives another wheel.
    print(revision() or "unknown")
