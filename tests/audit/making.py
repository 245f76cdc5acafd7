"""Wheels and packages of the toy kernels, with real cubins and real dispatch tables, and ways to change them."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import warnings
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.unit.aot_build.toy_specs import REPOSITORY
from wheels import provenance

DISTRIBUTION = "tbe_aot-1.0.dist-info"
LIB = "tbe_aot/lib/"
RECORD = f"{DISTRIBUTION}/RECORD"
BUILD_RECORD = f"{DISTRIBUTION}/{provenance.RECORD_FILE}"
SBOM = f"{DISTRIBUTION}/{provenance.SBOM_FILE}"
METADATA = b"Metadata-Version: 2.4\nName: tbe-aot\nVersion: 1.0\nLicense-File: LICENSE\n\nText\n"
DATE = (2026, 1, 1, 0, 0, 0)
# The tables of the library and nothing else of it: no torch, no operators.
EXPORT = """
#include "kernel_table.h"
extern "C" __attribute__((visibility("default"))) const tbe_aot::BuildInfo* const tbe_aot_tables = &tbe_aot::kBuild;
"""

Files = dict[str, bytes]


def compile_library(generated: Path, out: Path) -> bytes:
    """A shared library with the generated tables."""
    source = out.with_suffix(".export.cpp")
    source.write_text(EXPORT)
    core = REPOSITORY / "csrc_launcher" / "core"
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-fPIC",
        "-fvisibility=hidden",
        "-shared",
        f"-I{core}",
        f"-I{generated}",
    ]
    command += [str(generated / "tbe_aot_generated.cpp"), str(source), "-o", str(out)]
    subprocess.run(command, check=True)
    return out.read_bytes()


def package_files(artifacts: Path, library: bytes) -> Files:
    """What a wheel of these artifacts holds."""
    files = {f"{LIB}{path.name}": path.read_bytes() for path in artifacts.glob("*.pack")}
    return with_provenance(
        files
        | {
            f"{LIB}manifest.json": (artifacts / "manifest.json").read_bytes(),
            f"{LIB}libtbe_aot.so": library,
            "tbe_aot/__init__.py": b'"""A package."""\n',
            f"{DISTRIBUTION}/METADATA": METADATA,
            f"{DISTRIBUTION}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
            f"{DISTRIBUTION}/entry_points.txt": b"[console_scripts]\n",
            f"{DISTRIBUTION}/licenses/LICENSE": b"Do as you like.\n",
        }
    )


def build_record_of(files: Files) -> dict[str, Any]:
    """The build record of the files' manifest."""
    manifest = json.loads(files[f"{LIB}manifest.json"])
    return {
        "record_version": provenance.RECORD_VERSION,
        "version": "1.0",
        "build_id": manifest["build_id"],
        "profile": manifest["profile"],
        "source": {"sha256": "5" * 64, "revision": "abc"},
        "kernels": manifest["toolchain"],
        "native": {"compiler": "g++ 1", "flags": [], "torch": "2.13.0", "pybind11": "3.1.0"},
    }


def with_provenance(files: Files, record: dict[str, Any] | None = None) -> Files:
    """The files with a build record and a bill of materials that fit, as a build makes them and as a forger could."""
    record = build_record_of(files) if record is None else record
    named = {**files, BUILD_RECORD: json.dumps(record).encode()}
    hashes = {
        name: hashlib.sha256(data).hexdigest()
        for name, data in named.items()
        if name.removeprefix(f"{DISTRIBUTION}/") not in provenance.UNLISTED
    }
    bill = provenance.bill_of_materials(record, hashes, ["torch>=2.10"])
    return {**named, SBOM: json.dumps(bill).encode()}


def record_of(files: Files) -> bytes:
    """RECORD for the files."""
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{RECORD},,\n"]).encode()


def write_wheel(
    path: Path, files: Files, record: bytes | None = None, first: Iterable[tuple[str, bytes]] = ()
) -> Path:
    """A wheel as setuptools writes one; ``first``: members before those, perhaps of the same names."""
    members = {**files, RECORD: record_of(files) if record is None else record}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # zipfile's, of names that are there twice
        for name, data in [*first, *members.items()]:
            info = zipfile.ZipInfo(name, DATE)
            mode = 0o100755 if name.endswith(".so") else 0o100664 if name == RECORD else 0o100644
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return path


def write_package(folder: Path, files: Files) -> Path:
    """The same files as installed; the package's folder."""
    for name, data in {**files, RECORD: record_of(files)}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / "tbe_aot"


def flipped(data: bytes, position: int, bit: int = 0) -> bytes:
    """One bit changed."""
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


def edit_manifest(
    files: Files, edit: Callable[[dict[str, Any]], None], *, keep_id: bool = False
) -> Files:
    """The files with another manifest; its build id is made to fit unless it is kept."""
    manifest = json.loads(files[f"{LIB}manifest.json"])
    edit(manifest)
    if not keep_id:
        rest = {name: value for name, value in manifest.items() if name != "build_id"}
        text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
        manifest["build_id"] = hashlib.sha256(text.encode()).hexdigest()
    return {**files, f"{LIB}manifest.json": json.dumps(manifest).encode()}
