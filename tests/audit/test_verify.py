"""Every way of being wrong is found, by the check that it belongs to, with the name of what is wrong."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import shutil
import struct
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot_build.pack import decode_index, encode_pack
from tbe_aot_audit.archive import archive_problems
from tbe_aot_audit.errors import AuditError
from tbe_aot_audit.manifest import Code
from tbe_aot_audit.provenance import serial_number
from tbe_aot_audit.source import open_source
from tbe_aot_audit.verify import CHECKS, Verification, verify
from tests.audit.making import (
    BUILD_RECORD,
    DISTRIBUTION,
    LIB,
    METADATA,
    RECORD,
    SBOM,
    Files,
    build_record_of,
    edit_manifest,
    flipped,
    record_of,
    with_provenance,
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
    assert {statuses.pop(name) for name in ("artifacts", "bytecode")} == {"not applicable"}
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
    (
        a_manifest_of_another_build,
        True,
        "provenance",
        "build_record.json: it contradicts the manifest in the build: ",
    ),
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
        "record": ["tbe_aot/x.py: RECORD does not name it"],
        "provenance": ["tbe_aot/x.py: sboms/tbe-aot.cdx.json does not name it"],
    }


def test_a_file_that_is_missing_from_an_installation(files: Files, tmp_path: Path):
    package = write_package(tmp_path, files)
    (package / "__init__.py").unlink()
    assert found(verify(open_source(package))) == {
        "record": ["tbe_aot/__init__.py: RECORD names it, but it is missing"],
        "provenance": ["tbe_aot/__init__.py: sboms/tbe-aot.cdx.json names it, but it is missing"],
    }


def test_a_member_that_is_there_twice(files: Files, tmp_path: Path):
    """Which of the two is read depends on the reader."""
    first = [("tbe_aot/__init__.py", b"print('evil')\n")]
    wheel = write_wheel(tmp_path / "a.whl", files, first=first)
    (finding,) = found(verify(open_source(wheel)))["archive"]
    assert finding.startswith("tbe_aot/__init__.py: two members have this name")


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/cron.d/x",
        "/etc/cron.d/x",
        "tbe_aot/../x.py",
        "tbe_aot/./x.py",
        "tbe_aot//x.py",
        "tbe_aot\\x.py",
        "tbe_aot/a\u202eyp.x",
        "tbe_aot/\x1b[2J.py",
        "tbe_aot/\n.py",
        "tbe_aot/" + "x" * 300,
        "tbe_aot/__INIT__.py",
        "evil.pth",
        "tbe_aot.py",
        "tbe_aot-1.0.data/scripts/python",
        "torch/__init__.py",
    ],
)
def test_a_name_that_no_build_gives(files: Files, tmp_path: Path, name: str):
    """Everything else is made to fit: RECORD, build record and bill of materials."""
    changed = with_provenance({**files, name: b"evil"})
    findings = found(verify(open_source(write_wheel(tmp_path / "a.whl", changed))))
    # A line break is more than the toy's RECORD can quote.
    assert findings.keys() == ({"archive", "record"} if "\n" in name else {"archive"})
    (finding,) = findings["archive"]
    assert finding.isprintable()


def test_short_members_are_right(tmp_path: Path):
    """Their code ends with zeros, so the last bit that is set belongs to their content."""
    generator = random.Random(3)
    words = ['{"a": ', "[1, 2]", "true", '"x"', "import ", "\n", "}", "]", "(", ")", "ab"]
    members = {
        f"tbe_aot/{number}.py": "".join(generator.choices(words, k=number % 40)).encode()
        for number in range(2000)
    }
    data = write_wheel(tmp_path / "a.whl", members).read_bytes()
    contents: dict[str, bytes] = {}
    assert list(archive_problems(data, DISTRIBUTION, contents)) == []
    assert {name: contents[name] for name in members} == members


def test_a_member_that_reaches_into_the_directory(tmp_path: Path):
    wheel = write_wheel(tmp_path / "a.whl", {"tbe_aot/a.py": b"a"})
    data = bytearray(wheel.read_bytes())
    struct.pack_into("<I", data, central_directory(bytes(data)) + 20, 1 << 20)
    ((member, problem),) = archive_problems(bytes(data), DISTRIBUTION, {})
    assert member == "tbe_aot/a.py"
    assert problem.startswith("its 1048576 bytes at 0 reach into the directory at ")


def test_a_second_dist_info_folder(files: Files, tmp_path: Path):
    other = "tbe_aot-0.0.dist-info/RECORD"
    wheel = open_source(write_wheel(tmp_path / "a.whl", {**files, other: b""}))
    assert "has 2 .dist-info folders" in found(verify(wheel))["record"][0]
    package = open_source(write_package(tmp_path, {**files, other: b""}))
    assert "has 2 .dist-info folders" in found(verify(package))["record"][0]


def without(files: Files, *names: str) -> Files:
    return {name: data for name, data in files.items() if name not in names}


def a_changed_requirement(files: Files) -> Files:
    return {**files, info("METADATA"): METADATA.replace(b"\n\n", b"\nRequires-Dist: evil\n\n")}


def info(name: str) -> str:
    return f"{DISTRIBUTION}/{name}"


def an_edited(name: str, edit: Callable[[dict[str, Any]], None]) -> Callable[[Files], Files]:
    def change(files: Files) -> Files:
        document = json.loads(files[name])
        edit(document)
        return {**files, name: json.dumps(document).encode()}

    return change


def an_edited_record(edit: Callable[[dict[str, Any]], None]) -> Callable[[Files], Files]:
    """A build record that was changed, in a bill of materials that fits it."""

    def change(files: Files) -> Files:
        record = build_record_of(files)
        edit(record)
        return with_provenance(files, record)

    return change


def an_edited_bill(edit: Callable[[dict[str, Any]], None]) -> Callable[[Files], Files]:
    """A bill of materials that was changed, with a serial number that fits."""

    def edit_all(bill: dict[str, Any]) -> None:
        edit(bill)
        bill["serialNumber"] = serial_number(bill)

    return an_edited(SBOM, edit_all)


def product(bill: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = bill["metadata"]["component"]
    return found


SAYS_BUILD_RECORD = "build_record.json: it contradicts "
SAYS_BILL = "sboms/tbe-aot.cdx.json: it contradicts build_record.json in "
# RECORD is made anew for each: the change, the check that finds it, and what its finding says.
FORGED = {
    "a module": (lambda f: {**f, "tbe_aot/__init__.py": b"evil"}, "provenance", "tbe_aot/__init__.py: its SHA-256 is not that"),
    "entry points": (lambda f: {**f, info("entry_points.txt"): b"[console_scripts]\npip=evil:x\n"}, "provenance", "entry_points.txt: its SHA-256"),
    "a requirement": (a_changed_requirement, "provenance", "METADATA: its SHA-256"),
    "a compiled module": (lambda f: {**f, "tbe_aot/__pycache__/__init__.cpython-311.pyc": b"x"}, "provenance", ".pyc: sboms/tbe-aot.cdx.json does not name it"),
    "METADATA is gone": (lambda f: without(f, info("METADATA")), "metadata", "holds no "),
    "WHEEL is gone": (lambda f: without(f, info("WHEEL")), "metadata", "holds no "),
    "another WHEEL": (lambda f: {**f, info("WHEEL"): b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: any\n"}, "metadata", "Root-Is-Purelib is ['true']"),
    "a licence is gone": (lambda f: with_provenance(without(f, info("licenses/LICENSE"))), "metadata", "licenses/LICENSE: every wheel of this project has it"),
    "licences are not named": (lambda f: with_provenance({**f, info("METADATA"): b"Name: tbe-aot\n"}), "metadata", "METADATA: it names no licence"),
    "the bill is gone": (lambda f: without(f, SBOM), "provenance", "holds no "),
    "an empty bill": (lambda f: {**f, SBOM: b"{}"}, "provenance", "tbe-aot.cdx.json is damaged: serialNumber"),
    "a bill of nothing": (an_edited_bill(lambda b: b.update(components=[])), "provenance", "tbe_aot/__init__.py: sboms/tbe-aot.cdx.json does not name it"),
    "a file that the bill names twice": (an_edited_bill(lambda b: b["components"].append(b["components"][3])), "provenance", "names it twice"),
    "a bill with another requirement": (an_edited(SBOM, lambda b: b["components"].pop()), "provenance", "its serial number is not that of its content"),
    "Triton in the record": (an_edited_record(lambda r: r["kernels"].update(triton="9")), "provenance", f"{SAYS_BUILD_RECORD}the manifest in the tools"),
    "ptxas in the record": (an_edited_record(lambda r: r["kernels"]["ptxas"].update(sm90="9")), "provenance", f"{SAYS_BUILD_RECORD}the manifest in the tools"),
    "NVRTC in the record": (an_edited_record(lambda r: r["kernels"].update(nvrtc="9")), "provenance", f"{SAYS_BUILD_RECORD}the manifest in the tools"),
    "the profile in the record": (an_edited_record(lambda r: r.update(profile="ci")), "provenance", f"{SAYS_BUILD_RECORD}the manifest in the profile"),
    "the version in the record": (an_edited_record(lambda r: r.update(version="9")), "provenance", f"{SAYS_BUILD_RECORD}the .dist-info folder"),
    "a record of another version": (an_edited_record(lambda r: r.update(record_version=9)), "provenance", "is of version 9, this tool reads 1"),
    "the compiler in the record": (an_edited(BUILD_RECORD, lambda r: r["native"].update(compiler="9")), "provenance", f"{SAYS_BILL}the tools"),
    "torch in the record": (an_edited(BUILD_RECORD, lambda r: r["native"].update(torch="9")), "provenance", f"{SAYS_BILL}what is embedded"),
    "the commit in the record": (an_edited(BUILD_RECORD, lambda r: r["source"].update(revision="9")), "provenance", f"{SAYS_BILL}the properties"),
    "the build in the bill": (an_edited_bill(lambda b: product(b)["properties"][0].update(value="9")), "provenance", f"{SAYS_BILL}the properties"),
    "the version in the bill": (an_edited_bill(lambda b: product(b).update(version="9")), "provenance", f"{SAYS_BILL}the version"),
    "a tool in the bill": (an_edited_bill(lambda b: b["metadata"]["tools"]["components"].pop()), "provenance", f"{SAYS_BILL}the tools"),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_a_wheel_whose_record_was_made_to_fit(files: Files, tmp_path: Path, what: str):
    change, check, says = FORGED[what]
    result = verify(open_source(write_wheel(tmp_path / "a.whl", change(files))))
    assert any(says in finding for finding in found(result)[check]), found(result)


@pytest.mark.parametrize(
    "document",
    [
        {"components": None},
        [1],
        {"components": [{"type": "file", "name": "x", "hashes": ["x"]}]},
        {"components": [{"type": "file", "name": ["a"], "hashes": []}]},
        {"source": []},
        "text",
    ],
)
@pytest.mark.parametrize("name", [SBOM, BUILD_RECORD])
def test_a_document_of_another_form(files: Files, tmp_path: Path, name: str, document: Any):
    """A part of another type, in a document that is right but for it, and alone."""
    whole = json.loads(files[name])
    for made in (document, whole | document if isinstance(document, dict) else document):
        changed = {**files, name: json.dumps(made).encode()}
        assert found(verify(open_source(write_wheel(tmp_path / "a.whl", changed))))["provenance"]


MODULE = "tbe_aot/__init__.py"
COMPILED = "tbe_aot/__pycache__/__init__.cpython-311.pyc"


def replaced_record(folder: Path, change: Callable[[bytes], bytes]) -> None:
    path = folder / RECORD
    path.write_bytes(change(path.read_bytes()))


def without_line(name: str) -> Callable[[bytes], bytes]:
    return lambda record: b"".join(
        line for line in record.splitlines(keepends=True) if not line.startswith(name.encode())
    )


@pytest.mark.parametrize("name", ["evil.py", "torch.py", "lib/evil.so", "a/b.py", "module.pyc"])
def test_a_file_that_was_added_to_an_installation(files: Files, tmp_path: Path, name: str):
    package = write_package(tmp_path, files)
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_bytes(b"evil")
    assert (
        f"tbe_aot/{name}: RECORD does not name it" in found(verify(open_source(package)))["record"]
    )


def test_a_folder_that_was_linked_into_an_installation(files: Files, tmp_path: Path):
    package = write_package(tmp_path, files)
    (package / "evil").symlink_to("/tmp", target_is_directory=True)
    findings = found(verify(open_source(package)))
    assert "tbe_aot/evil: RECORD does not name it" in findings["record"]


def test_the_audit_itself_is_a_part_of_an_installation(files: Files, tmp_path: Path):
    package = write_package(tmp_path, files)
    (tmp_path / "tbe_aot_audit").mkdir()
    (tmp_path / "tbe_aot_audit" / "evil.py").write_bytes(b"")
    findings = found(verify(open_source(package)))
    assert "tbe_aot_audit/evil.py: RECORD does not name it" in findings["record"]


@pytest.mark.parametrize("change", [lambda record: b"", without_line(MODULE)])
def test_a_record_with_lines_taken_out(files: Files, tmp_path: Path, change):
    package = write_package(tmp_path, files)
    replaced_record(tmp_path, change)
    (package / "__init__.py").write_bytes(b"evil")
    findings = found(verify(open_source(package)))
    assert f"{MODULE}: RECORD does not name it" in findings["record"]
    assert any(MODULE in finding for finding in findings["provenance"])


def test_a_line_of_record_without_a_hash(files: Files, tmp_path: Path):
    package = write_package(tmp_path, files)
    replaced_record(
        tmp_path, lambda record: without_line(MODULE)(record) + f"{MODULE},,\n".encode()
    )
    findings = found(verify(open_source(package)))
    assert findings == {"record": [f"{MODULE}: RECORD has no hash of it"]}


def test_what_an_installer_adds_is_no_finding(files: Files, tmp_path: Path):
    package = write_package(tmp_path / "lib" / "python", files)
    folder = tmp_path / "lib" / "python"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tbe-aot").write_bytes(b"")
    added = {info("INSTALLER"): b"pip\n", info("REQUESTED"): b"", "../../bin/tbe-aot": b""}
    for name, data in added.items():
        (folder / name).write_bytes(data)
    lines = record_of(added).splitlines(keepends=True)[:-1]
    lines[1] = f"{info('REQUESTED')},,\n".encode()
    replaced_record(folder, lambda record: record + b"".join(lines))
    assert found(verify(open_source(package))) == {}
    (tmp_path / "bin" / "tbe-aot").write_bytes(b"evil")
    assert "../../bin/tbe-aot: changed" in found(verify(open_source(package)))["record"][0]


@pytest.mark.parametrize("line", [b"", f"{COMPILED},,\n".encode()])
def test_a_compiled_module_is_said_not_to_be_checked(files: Files, tmp_path: Path, line: bytes):
    package = write_package(tmp_path, files)
    (tmp_path / COMPILED).parent.mkdir()
    (tmp_path / COMPILED).write_bytes(b"anything")
    replaced_record(tmp_path, lambda record: record + line)
    result = verify(open_source(package))
    assert found(result) == {}
    assert result.unchecked == ["bytecode"]
    assert result.verdict.startswith("Nothing wrong was found, but it was not all looked at")
    (check,) = (check for check in result.checks if check.name == "bytecode")
    assert "RECORD has no hash of 1, " in check.note


def test_a_compiled_module_of_no_module(files: Files, tmp_path: Path):
    package = write_package(tmp_path, files)
    (tmp_path / COMPILED).parent.mkdir()
    (tmp_path / COMPILED.replace("__init__", "evil")).write_bytes(b"anything")
    assert "RECORD does not name it" in found(verify(open_source(package)))["record"][0]


def test_a_manifest_alone_is_not_what_was_built(files: Files, tmp_path: Path):
    path = tmp_path / "manifest.json"
    path.write_bytes(files[f"{LIB}manifest.json"])
    result = verify(open_source(path))
    assert result.ok
    assert {"record", "library", "packs", "cubins", "resources", "provenance"} <= set(
        result.unchecked
    )
    assert "what was built" not in result.verdict


def test_a_copied_package_is_not_what_was_built(files: Files, tmp_path: Path):
    package = write_package(
        tmp_path, {name: data for name, data in files.items() if DISTRIBUTION not in name}
    )
    (tmp_path / RECORD).unlink()
    (tmp_path / DISTRIBUTION).rmdir()
    (package / "__init__.py").write_bytes(b"evil")
    result = verify(open_source(package))
    assert result.unchecked == ["record", "bytecode", "metadata", "provenance"]
    assert "what was built" not in result.verdict


def copied(artifacts: Path, folder: Path) -> Path:
    shutil.copytree(artifacts, folder, ignore=shutil.ignore_patterns(".work"))
    return folder


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"sha256": {}}', "manifest.json: checksums.json does not name it"),
        ("{}", "is damaged: it lists no hashes"),
        ("[]", "is damaged: it lists no hashes"),
        ('{"sha256": {"manifest.json": 1}}', "is damaged: it lists no hashes"),
        ('{"sha256": {"\\ud800": "x"}}', "is no JSON"),
        ('{"sha256": {"../../etc/passwd": "x"}}', "but no build gives a file this name"),
        (json.dumps({"sha256": {"x" * 300: "x"}}), "but no build gives a file this name"),
    ],
)
def test_checksums_that_seal_nothing(artifacts: Path, tmp_path: Path, text: str, says: str):
    folder = copied(artifacts, tmp_path / "artifacts")
    (folder / "checksums.json").write_text(text)
    findings = found(verify(open_source(folder)))["artifacts"]
    assert any(says in finding for finding in findings), findings


def test_a_file_that_was_added_to_artifacts(artifacts: Path, tmp_path: Path):
    folder = copied(artifacts, tmp_path / "artifacts")
    (folder / "generated" / "evil.cpp").write_text("")
    (folder / ".work").mkdir()
    (folder / ".work" / "anything").write_text("")
    assert found(verify(open_source(folder))) == {
        "artifacts": ["generated/evil.cpp: checksums.json does not name it"]
    }


def facts_of(files: Files, folder: Path, edit: Callable[[dict[str, Any]], None]) -> list[str]:
    def change(manifest: dict[str, Any]) -> None:
        edit(next(v for v in manifest["kernels"]["scale"]["variants"] if v["name"] == VARIANT))

    changed = edit_manifest(files, change)
    return found(verify(open_source(write_wheel(folder / "a.whl", changed)))).get("facts", [])


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda v: v["occupancy"].update(percent=99.5), "its occupancy is recorded as "),
        (lambda v: v["occupancy"].update(limited_by="luck"), "its occupancy is recorded as "),
        (lambda v: v.update(num_warps=0), "no occupancy follows from 0 warps"),
        (lambda v: v.update(budget={"registers": 1}), "the build demanded at most 1"),
        (lambda v: v.update(budget={"fences": 1}), "its fences is 0, the build demanded at least 1"),
        (lambda v: v.update(budget={"luck": 1}), "its budget has a limit of luck: registers, "),
        (lambda v: v["sass"].update(global_load_bytes={"4": 9}), "its global loads are 9 of 4 bytes"),
        (lambda v: v["sass"].update(global_load_bytes={"016": 9}), "its global loads are 9 of 016"),
    ],
)  # fmt: skip
def test_facts_that_contradict_each_other(files: Files, tmp_path: Path, edit, says: str):
    assert any(says in finding for finding in facts_of(files, tmp_path, edit))


def test_facts_of_a_build_are_those_that_follow(files: Files, tmp_path: Path):
    assert facts_of(files, tmp_path, lambda variant: None) == []
    loads = [{"bytes": 16, "min_count": 1, "forbid_narrow": True}]
    assert facts_of(files, tmp_path, lambda variant: variant.update(row_loads=loads)) == []
    loads[0]["min_count"] = 99
    (finding,) = facts_of(files, tmp_path, lambda variant: variant.update(row_loads=loads))
    assert "the build demanded at least 99 of 16 bytes, none wider, none of 1 or 2 bytes" in finding


def test_a_member_that_unpacks_to_more_than_any_build_has(files: Files, tmp_path: Path):
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(write_wheel(path, files), "a", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo("tbe_aot/x.bin", (2026, 1, 1, 0, 0, 0))
        info.external_attr = 0o100644 << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        with archive.open(info, "w") as member:
            for _ in range(20):
                member.write(bytes(1 << 20))
    tracemalloc.start()
    findings = found(verify(open_source(path)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (
        "it would have 20971520 bytes; no build writes more than 16777216" in findings["archive"][0]
    )
    assert peak < 40 << 20
    # It says that it is small, and is not.
    data = path.read_bytes().replace(struct.pack("<I", 20 << 20), struct.pack("<I", 20))
    path.write_bytes(data)
    tracemalloc.start()
    findings = found(verify(open_source(path)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "its data is longer than it says" in findings["archive"][0]
    assert peak < 40 << 20


def test_a_record_of_too_many_lines(files: Files, tmp_path: Path):
    for count, says in ((9_000, "listed twice in RECORD"), (40_000, "has more than 10000 lines")):
        record = record_of(files) + b"tbe_aot/__init__.py,,\n" * count
        started = time.monotonic()
        findings = found(verify(open_source(write_wheel(tmp_path / "a.whl", files, record))))
        assert time.monotonic() - started < 5
        assert any(says in finding for finding in findings["record"])


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
@pytest.mark.parametrize("name", [PACK, f"{LIB}manifest.json", RECORD, SBOM, MODULE])
def test_what_is_no_regular_file_is_not_read(files: Files, tmp_path: Path, kind: str, name: str):
    package = write_package(tmp_path, files)
    path = tmp_path / name
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with contextlib.suppress(AuditError):
        assert not verify(open_source(package)).ok


def test_a_folder_that_may_not_be_read(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = write_package(tmp_path, files)
    stat = Path.stat

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if path.parent.name == "lib":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    # A real one would be readable for root.
    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(AuditError, match="cannot be read: Permission denied"):
        open_source(package)


@pytest.mark.parametrize(
    "name", ["a\0b.pack", "../lib/sm90.pack", "x" * 300, "/dev/zero", "\x1b[2J"]
)
def test_a_pack_of_another_name(files: Files, tmp_path: Path, name: str):
    changed = edit_manifest(files, lambda m: m["archs"]["sm90"].update(pack=name))
    for source in (write_wheel(tmp_path / "a.whl", changed), write_package(tmp_path, changed)):
        findings = found(verify(open_source(source)))
        assert findings["packs"]
        assert all(line.isprintable() for lines in findings.values() for line in lines)


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
