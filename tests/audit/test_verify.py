"""Every way of being wrong is found, by the check that it belongs to, with the name of what is wrong."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot_build.pack import decode_index, encode_pack
from tbe_aot_audit.errors import AuditError
from tbe_aot_audit.manifest import Code
from tbe_aot_audit.source import open_source
from tbe_aot_audit.verify import CHECKS, Verification, verify
from tests.audit.making import (
    LIB,
    Files,
    edit_manifest,
    flipped,
    record_of,
    write_package,
    write_wheel,
)

PACK = f"{LIB}sm90.pack"
VARIANT = "scale__fp16_256_long"


def found(result: Verification) -> dict[str, list[str]]:
    """Findings by check, as "subject: message"."""
    return {
        check.name: [f"{finding.subject}: {finding.message}" for finding in check.findings]
        for check in result.checks
        if check.findings
    }


def test_what_was_built_passes_every_check(wheel: Path):
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    result = verify(open_source(wheel), sha256)
    assert found(result) == {}
    assert result.ok
    statuses = {check.name: check.status for check in result.checks}
    assert statuses.pop("artifacts") == "not applicable"
    assert set(statuses.values()) == {"passed"}
    assert all(check.checked for check in result.checks if check.status == "passed")
    assert list(CHECKS) == [check.name for check in result.checks]


def test_an_installed_package_passes(files: Files, tmp_path: Path):
    result = verify(open_source(write_package(tmp_path, files)))
    assert found(result) == {}
    assert {check.name for check in result.checks if check.status == "not applicable"} == {
        "hash",
        "archive",
        "artifacts",
    }


def test_a_folder_of_artifacts_passes(artifacts: Path):
    result = verify(open_source(artifacts))
    assert found(result) == {}
    assert next(c for c in result.checks if c.name == "artifacts").status == "passed"


def entry_of(files: Files, name: str, arch: str = "sm90") -> dict[str, Any]:
    manifest = json.loads(files[f"{LIB}manifest.json"])
    kernel = name.partition("__")[0]
    variants = manifest["kernels"][kernel]["variants"]
    return next(v for v in variants if (v["name"], v["arch"]) == (name, arch))


def place_of(files: Files, name: str) -> tuple[int, int]:
    """Offset and size of a variant's cubin in the pack of sm90."""
    _, offset, size = decode_index(files[PACK]).entries[entry_of(files, name)["blob"]]
    return offset, size


def with_pack(files: Files, pack: bytes) -> Files:
    return {**files, PACK: pack}


def a_byte_of_a_cubin(files: Files) -> Files:
    offset, size = place_of(files, VARIANT)
    return with_pack(files, flipped(files[PACK], offset + size // 2))


def a_byte_of_the_pack_s_index(files: Files) -> Files:
    return with_pack(files, flipped(files[PACK], 45))


def a_truncated_pack(files: Files) -> Files:
    return with_pack(files, files[PACK][:-100])


def a_pack_of_another_arch(files: Files) -> Files:
    return with_pack(files, files[f"{LIB}sm100.pack"])


def a_pack_of_another_build(files: Files) -> Files:
    pack = files[PACK]
    cubins = [pack[offset : offset + size] for _, offset, size in decode_index(pack).entries]
    cubins[0] += b"\0"
    return with_pack(
        files, encode_pack("sm90", {hashlib.sha256(c).hexdigest(): c for c in cubins})[1]
    )


def a_missing_pack(files: Files) -> Files:
    return {name: data for name, data in files.items() if name != PACK}


def a_pack_that_nothing_asks_for(files: Files) -> Files:
    return {**files, f"{LIB}sm80.pack": files[PACK]}


def a_byte_of_the_manifest(files: Files) -> Files:
    return edit_manifest(
        files, lambda m: m["kernels"]["scale"].update(source_sha256="0" * 64), keep_id=True
    )


def a_manifest_of_another_build(files: Files) -> Files:
    return edit_manifest(files, lambda m: m["kernels"]["scale"].update(source_sha256="0" * 64))


def a_manifest_of_another_version(files: Files) -> Files:
    return edit_manifest(files, lambda m: m.update(schema_version=3))


def registers_that_are_not_the_cubin_s(files: Files) -> Files:
    def change(manifest: dict[str, Any]) -> None:
        for variant in manifest["kernels"]["scale"]["variants"]:
            if (variant["name"], variant["arch"]) == (VARIANT, "sm90"):
                variant["registers"] += 2

    return edit_manifest(files, change)


def parameters_that_are_not_the_cubin_s(files: Files) -> Files:
    return edit_manifest(files, lambda m: m["kernels"]["scale"]["params"][1].update(offset=4))


def a_cell_that_leads_nowhere(files: Files) -> Files:
    def change(manifest: dict[str, Any]) -> None:
        kernel = manifest["kernels"]["scale"]
        kernel["cells"][kernel["variants"][0]["cell"]] = 999

    return edit_manifest(files, change)


def variants_of_an_arch_that_are_gone(files: Files) -> Files:
    def change(manifest: dict[str, Any]) -> None:
        kernel = manifest["kernels"]["scale"]
        kernel["variants"] = [v for v in kernel["variants"] if v["arch"] != "sm100"]

    return edit_manifest(files, change)


def a_kernel_that_is_not_made_for_its_arch(files: Files) -> Files:
    return edit_manifest(files, lambda m: m["kernels"]["scale"].update(archs=["sm90"]))


def a_variant_that_was_left_out(files: Files) -> Files:
    def change(manifest: dict[str, Any]) -> None:
        for variant in manifest["kernels"]["scale"]["variants"]:
            if (variant["name"], variant["arch"]) == (VARIANT, "sm90"):
                variant.update(built=False, blob=-1)
                for name in list(variant):
                    if name in Code.model_fields:
                        del variant[name]

    return edit_manifest(files, change)


def a_variant_that_launches_another_s_cubin(files: Files) -> Files:
    other = entry_of(files, "fill")["blob"]

    def change(manifest: dict[str, Any]) -> None:
        for variant in manifest["kernels"]["scale"]["variants"]:
            if (variant["name"], variant["arch"]) == (VARIANT, "sm90"):
                variant["blob"] = other

    return edit_manifest(files, change)


def a_driver_that_is_too_old(files: Files) -> Files:
    return edit_manifest(files, lambda m: m["archs"]["sm90"].update(least_driver="470.82.01"))


def a_cubin_of_another_target(files: Files) -> Files:
    """Consistent in itself, hashes and all: only the cubin's own header tells."""
    index = decode_index(files[PACK])
    number = entry_of(files, VARIANT)["blob"]
    cubins = [files[PACK][offset : offset + size] for _, offset, size in index.entries]
    old = hashlib.sha256(cubins[number]).hexdigest()
    changed = bytearray(cubins[number])
    struct.pack_into("<I", changed, 48, struct.unpack_from("<I", changed, 48)[0] & ~0xFF | 89)
    cubins[number] = bytes(changed)
    by_hash = {hashlib.sha256(c).hexdigest(): c for c in cubins}
    head, pack = encode_pack("sm90", by_hash)
    order = {sha256: position for position, sha256 in enumerate(sorted(by_hash))}

    def change(manifest: dict[str, Any]) -> None:
        manifest["archs"]["sm90"].update(
            index_sha256=hashlib.sha256(head).hexdigest(),
            pack_sha256=hashlib.sha256(pack).hexdigest(),
            file_size=len(pack),
        )
        for kernel in manifest["kernels"].values():
            for variant in kernel["variants"]:
                if variant["arch"] == "sm90":
                    if variant["cubin_sha256"] == old:
                        variant["cubin_sha256"] = hashlib.sha256(changed).hexdigest()
                    variant["blob"] = order[variant["cubin_sha256"]]

    return edit_manifest(with_pack(files, pack), change)


def a_byte_of_the_library(files: Files) -> Files:
    name = f"{LIB}libtbe_aot.so"
    position = files[name].index(f"{VARIANT}\0".encode())
    return {**files, name: flipped(files[name], position)}


def a_library_that_is_none(files: Files) -> Files:
    return {**files, f"{LIB}libtbe_aot.so": b"\x7fELF"}


def a_source_file(files: Files) -> Files:
    return {**files, "tbe_aot/__init__.py": b'"""Another package."""\n'}


# The change, whether RECORD is made anew as a forger would, the check that finds it, and what its finding says.
CORRUPTIONS = [
    (a_byte_of_a_cubin, True, "cubins", f"{VARIANT} on sm90: its cubin, number "),
    (a_byte_of_a_cubin, False, "record", f"{PACK}: changed"),
    (a_byte_of_the_pack_s_index, True, "packs", "sm90.pack: its index was changed"),
    (a_truncated_pack, True, "packs", "sm90.pack: tbe_aot/lib/sm90.pack is truncated"),
    (a_pack_of_another_arch, True, "packs", "it holds cubins for sm100, not for sm90"),
    (a_pack_of_another_build, True, "packs", "the library would refuse it"),
    (a_missing_pack, True, "packs", "holds no tbe_aot/lib/sm90.pack"),
    (a_pack_that_nothing_asks_for, True, "packs", "no arch of the manifest has this pack"),
    (a_byte_of_the_manifest, True, "manifest", "manifest.json: changed: it says build "),
    (a_manifest_of_another_build, True, "library", "libtbe_aot.so: it was built for build "),
    (a_manifest_of_another_version, True, "manifest", "has schema version 3, this tool reads 2"),
    (registers_that_are_not_the_cubin_s, True, "resources", f"{VARIANT} on sm90: registers is "),
    (parameters_that_are_not_the_cubin_s, True, "parameters", "parameters (offset, size) are "),
    (a_cell_that_leads_nowhere, True, "cells", "has neither a variant nor a reason"),
    (a_cell_that_leads_nowhere, True, "reachable", "does not lead to it"),
    (
        variants_of_an_arch_that_are_gone,
        True,
        "cells",
        "0 variants on sm100 and is made for sm90, sm",
    ),
    (a_kernel_that_is_not_made_for_its_arch, True, "cells", "on sm100 and is made for sm90"),
    (a_variant_that_was_left_out, True, "cells", "but the profile full left it out"),
    (a_variant_that_was_left_out, True, "reachable", "no variant uses cubin "),
    (a_variant_that_launches_another_s_cubin, True, "cubins", f"{VARIANT} on sm90: cubin "),
    (a_driver_that_is_too_old, True, "driver", "needs driver 525.60.13, the manifest says 470.82"),
    (a_cubin_of_another_target, True, "target", "is for sm_89a, the pack for sm_90a"),
    (a_byte_of_the_library, True, "library", f"{VARIANT} on "),
    (a_library_that_is_none, True, "library", "is no 64-bit ELF file"),
    (a_byte_of_a_cubin, True, "provenance", f"{PACK}: its SHA-256 is not that of sboms/"),
    (a_missing_pack, True, "provenance", f"{PACK}: sboms/tbe-aot.cdx.json names it, but"),
    (a_manifest_of_another_build, True, "provenance", "build_record.json: it is of build "),
    (a_source_file, False, "record", "tbe_aot/__init__.py: changed"),
]


@pytest.mark.parametrize(
    ("change", "forged", "check", "says"),
    CORRUPTIONS,
    ids=[f"{change.__name__}-{check}" for change, _, check, _ in CORRUPTIONS],
)
def test_a_changed_wheel_is_found(
    files: Files,
    tmp_path: Path,
    change: Callable[[Files], Files],
    forged: bool,
    check: str,
    says: str,
):
    changed = change(files)
    wheel = write_wheel(tmp_path / "a.whl", changed, None if forged else record_of(files))
    result = verify(open_source(wheel))
    assert not result.ok
    assert any(says in finding for finding in found(result)[check]), found(result)


def test_a_kernel_for_other_archs_alone_is_no_finding(files: Files, tmp_path: Path):
    def change(manifest: dict[str, Any]) -> None:
        manifest["kernels"]["fill"].update(archs=["sm120"], variants=[])

    wheel = write_wheel(tmp_path / "x.whl", edit_manifest(files, change))
    (cells,) = (c for c in verify(open_source(wheel)).checks if c.name == "cells")
    assert not cells.findings
    assert "1 kernels are made for other archs" in cells.note


def test_a_file_that_record_does_not_name(files: Files, tmp_path: Path):
    wheel = write_wheel(tmp_path / "a.whl", {**files, "tbe_aot/x.py": b""}, record_of(files))
    assert found(verify(open_source(wheel))) == {
        "record": ["tbe_aot/x.py: RECORD does not name it"]
    }


def test_a_file_that_is_missing_from_an_installation(files: Files, tmp_path: Path):
    package = write_package(tmp_path, files)
    (package / "__init__.py").unlink()
    assert found(verify(open_source(package))) == {
        "record": ["tbe_aot/__init__.py: RECORD names it, but it is missing"]
    }


def test_a_record_that_is_damaged(files: Files, tmp_path: Path):
    broken = record_of(files).replace(b"sha256=", b"md5=", 1)
    findings = found(verify(open_source(write_wheel(tmp_path / "a.whl", files, broken))))
    assert "has a hash of kind 'md5'" in findings["record"][0]


def test_a_changed_file_of_artifacts(files: Files, artifacts: Path, tmp_path: Path):
    for path in artifacts.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "generated").mkdir()
    for path in (artifacts / "generated").iterdir():
        (tmp_path / "generated" / path.name).write_bytes(path.read_bytes() + b" ")
    findings = found(verify(open_source(tmp_path)))
    assert set(findings) == {"artifacts"}
    assert any(
        line.startswith("generated/tbe_aot_generated.h: changed") for line in findings["artifacts"]
    )


def test_another_hash_than_the_release_s(wheel: Path):
    assert list(found(verify(open_source(wheel), "0" * 64))) == ["hash"]


@pytest.mark.parametrize("part", [b"", b"PK", b"PK\x05\x06" + b"\0" * 18])
def test_what_is_no_wheel(tmp_path: Path, part: bytes):
    path = tmp_path / "a.whl"
    path.write_bytes(part)
    with contextlib.suppress(AuditError):
        assert not verify(open_source(path)).ok


def central_directory(data: bytes) -> int:
    return int(struct.unpack_from("<I", data, len(data) - 6)[0])


def same_content(wheel: Path, original: bytes, position: int) -> bool:
    """Whether the change is one of deflated data that inflates to the same bytes, which only the wheel's hash shows."""
    directory = central_directory(original)
    if position >= directory:
        return False
    before = wheel.with_name("before.whl")
    before.write_bytes(original)
    with zipfile.ZipFile(before) as first, zipfile.ZipFile(wheel) as second:
        for info in first.infolist():
            begin = info.header_offset + 30 + len(info.filename)
            if begin <= position < begin + info.compress_size:
                try:
                    return first.read(info) == second.read(info.filename)
                except (zipfile.BadZipFile, zlib.error):
                    return False
    return False


def check_flip(wheel: Path, data: bytes, position: int, bit: int) -> bool:
    wheel.write_bytes(flipped(data, position, bit))
    try:
        result = verify(open_source(wheel), hashlib.sha256(data).hexdigest())
    except AuditError as error:
        return wheel.name in str(error)
    checks = found(result)
    assert checks.pop("hash")
    named = bool(checks) and all(
        line.partition(": ")[0] for lines in checks.values() for line in lines
    )
    return named or same_content(wheel, data, position)


def test_every_byte_of_the_archive_s_directory(wheel: Path, tmp_path: Path):
    data = wheel.read_bytes()
    changed = tmp_path / "changed.whl"
    generator = random.Random(1)
    missed = [
        position
        for position in range(central_directory(data), len(data))
        if not check_flip(changed, data, position, generator.randrange(8))
    ]
    assert not missed


def test_bytes_anywhere(wheel: Path, tmp_path: Path):
    data = wheel.read_bytes()
    changed = tmp_path / "changed.whl"
    generator = random.Random(2)
    positions = [generator.randrange(len(data)) for _ in range(300)]
    # The heads of members, which most readers never look at.
    heads = [at for at in range(len(data) - 4) if data[at : at + 4] == b"PK\x03\x04"]
    positions += [head + offset for head in heads for offset in range(30)]
    missed = [
        position
        for position in positions
        if not check_flip(changed, data, position, generator.randrange(8))
    ]
    assert not missed
