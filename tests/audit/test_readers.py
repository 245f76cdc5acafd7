"""The readers: what they read is what the build wrote, and nothing that they are given makes them crash."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot_build.cubin import read_params, read_resource_usage
from aot_build.pack import ENTRY, HEADER, decode_index, encode_pack
from tbe_aot_audit.baseline import make_baseline, read_baseline
from tbe_aot_audit.compare import compare
from tbe_aot_audit.cubin import read_cubin
from tbe_aot_audit.elf import Elf
from tbe_aot_audit.errors import AuditError
from tbe_aot_audit.explain import Call, explain
from tbe_aot_audit.library import read_library
from tbe_aot_audit.listing import list_variants, show
from tbe_aot_audit.manifest import computed_build_id, parse_manifest
from tbe_aot_audit.pack import parse_pack
from tbe_aot_audit.record import read_record
from tbe_aot_audit.report import make_report
from tbe_aot_audit.source import open_source
from tbe_aot_audit.verify import checksums, verify
from tests.audit.making import (
    BUILD_RECORD,
    DISTRIBUTION,
    LIB,
    RECORD,
    SBOM,
    Files,
    write_package,
    write_wheel,
)

Data = TypeVar("Data", bytes, Path)
# Other examples in every run, but the same ones in CI: what it says then does not depend on luck.
MANY = settings(
    max_examples=300,
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
CUBINS = {hashlib.sha256(data).hexdigest(): data for data in (b"one", b"two" * 20, b"three" * 7)}


def test_a_cubin_says_what_nvidia_s_tools_say(files: Files, tmp_path: Path):
    manifest = parse_manifest(files[f"{LIB}manifest.json"], "manifest")
    for kernel, variant, code in manifest.built():
        pack = parse_pack(files[f"{LIB}{variant.arch}.pack"], "pack")
        data = pack.cubin(variant.blob)
        path = tmp_path / "kernel.cubin"
        path.write_bytes(data)
        found = read_cubin(data, "cubin")
        usage = read_resource_usage(path)
        assert found.registers == usage["REG"]
        assert found.stack_bytes == usage["STACK"]
        assert found.static_shared_bytes == usage["SHARED"]
        assert code.static_shared_bytes == max(0, usage["SHARED"] - 1024)
        assert found.params == tuple((p.offset, p.size) for p in read_params(path))
        assert found.toolkit == 129
        assert found.block == 32 * variant.num_warps
        assert found.specific
        assert 10 * manifest.archs[variant.arch].compute_capability[0] == found.capability
        assert manifest.kernels[kernel].function == found.entry == code.entry


def test_the_library_s_tables_are_the_manifest_s(files: Files):
    manifest = parse_manifest(files[f"{LIB}manifest.json"], "manifest")
    library = read_library(files[f"{LIB}libtbe_aot.so"], "library")
    assert library.build_id == manifest.build_id
    assert computed_build_id(files[f"{LIB}manifest.json"]) == manifest.build_id
    names = {variant.name for kernel in library.kernels for variant in kernel.variants["sm90"]}
    assert names == {variant.name for _, variant in manifest.variants if variant.arch == "sm90"}


def test_sections_are_those_of_another_reader(files: Files, tmp_path: Path):
    path = tmp_path / "lib.so"
    path.write_bytes(files[f"{LIB}libtbe_aot.so"])
    with path.open("rb") as file:
        expected = [(s.name, s.data_size) for s in ELFFile(file).iter_sections()]
    assert [(s.name, s.size) for s in Elf(path.read_bytes(), "lib").sections] == expected


def test_a_pack_is_read_as_the_build_wrote_it():
    index, data = encode_pack("sm90", CUBINS)
    pack = parse_pack(data, "pack")
    assert pack.arch == "sm90"
    assert [(b.sha256, b.offset, b.size) for b in pack.blobs] == decode_index(data).entries
    assert pack.index_sha256 == hashlib.sha256(index).hexdigest()
    assert [pack.cubin(n) for n in range(3)] == [CUBINS[sha256] for sha256 in sorted(CUBINS)]
    assert (pack.changed(), pack.stray_bytes()) == ([], [])


def test_every_byte_of_a_pack_counts():
    _, data = encode_pack("sm90", CUBINS)
    index = parse_pack(data, "pack").index_sha256
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 4
        try:
            pack = parse_pack(bytes(changed), "pack")
        except AuditError:
            continue
        assert pack.index_sha256 != index or pack.changed() or pack.stray_bytes(), position


def test_padding_is_named():
    _, data = encode_pack("sm90", CUBINS)
    pack = parse_pack(data, "pack")
    end = pack.blobs[0].offset + pack.blobs[0].size
    changed = bytearray(data)
    changed[end] = 1
    assert parse_pack(bytes(changed), "pack").stray_bytes() == [(end, pack.blobs[1].offset)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: b"", "is truncated: 0 bytes"),
        (lambda data: data[:-1], "is truncated: it has "),
        (lambda data: data + b"\0", "is damaged: it has "),
        (lambda data: b"X" + data[1:], "is no pack"),
        (lambda data: data[:8] + struct.pack("<I", 2) + data[12:], "has pack format 2"),
        (lambda data: data[:12] + struct.pack("<I", 2**31) + data[16:], "is longer than the file"),
        (lambda data: data[:72] + struct.pack("<Q", 8) + data[80:], "outside or unaligned"),
    ],
)
def test_a_pack_that_is_refused(change, says):
    _, data = encode_pack("sm90", CUBINS)
    with pytest.raises(AuditError, match=says):
        parse_pack(change(data), "some.pack")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is no JSON"),
        (b"\xff", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[]", "is no manifest of a build"),
        (b"{}", "is no manifest of a build"),
        (b'{"schema_version": 1, "kernels": {}}', "schema version 1, this tool reads 2: use the tbe-aot-audit that came with that build$"),
        (b'{"schema_version": 9, "kernels": {}}', "schema version 9, this tool reads 2: .*, or a newer one"),
        (b'{"schema_version": "x", "kernels": {}}', "schema version 'x'"),
        (b'{"schema_version": 2, "kernels": 3}', "is damaged: "),
        (b'{"schema_version": 2, "kernels": {}, "profile": "\\ud800"}', "is no JSON .*surrogates not allowed"),
        (b'{"schema_version": 2, "kernels": NaN}', "is no JSON .NaN is no number"),
        (b'{"schema_version": 1' + b"0" * 30 + b', "kernels": {}}', "has more than 64 bits"),
    ],
)  # fmt: skip
def test_a_manifest_that_is_refused(text: bytes, says: str):
    with pytest.raises(AuditError, match=says):
        parse_manifest(text, "manifest.json")


def tolerant(read: Callable[[Data], object], data: Data) -> None:
    """Reading ends in a result or in this package's error, never in another one."""
    with contextlib.suppress(AuditError):
        read(data)


def read_everything_of_a_pack(data: bytes) -> None:
    pack = parse_pack(data, "pack")
    pack.changed()
    pack.stray_bytes()
    for number in range(len(pack.blobs)):
        tolerant(lambda cubin: read_cubin(cubin, "cubin"), pack.cubin(number))


def changes(size: int):
    """Bytes replaced at some places, and perhaps a cut."""
    replaced = st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 255)), max_size=8)
    return st.tuples(replaced, st.one_of(st.none(), st.integers(0, size)))


def changed(data: bytes, how) -> bytes:
    replaced, cut = how
    made = bytearray(data)
    for position, value in replaced:
        made[position] = value
    return bytes(made[:cut])


@MANY
@given(data=st.data())
def test_fuzzed_packs(files: Files, data):
    pack = files[f"{LIB}sm90.pack"]
    tolerant(read_everything_of_a_pack, changed(pack, data.draw(changes(len(pack)))))


@MANY
@given(data=st.data())
def test_fuzzed_headers_of_packs(data):
    _, pack = encode_pack("sm90", CUBINS)
    size = HEADER.size + ENTRY.size * len(CUBINS)
    tolerant(read_everything_of_a_pack, changed(pack, data.draw(changes(size))))


@MANY
@given(data=st.data())
def test_fuzzed_cubins(files: Files, data):
    pack = parse_pack(files[f"{LIB}sm90.pack"], "pack")
    cubin = pack.cubin(data.draw(st.integers(0, len(pack.blobs) - 1)))
    # Where the tables are: the header, and the last part of the file.
    places = [*range(64), *range(len(cubin) - 2000, len(cubin))]
    replaced = st.lists(st.tuples(st.sampled_from(places), st.integers(0, 255)), max_size=6)
    tolerant(lambda made: read_cubin(made, "cubin"), changed(cubin, (data.draw(replaced), None)))


@MANY
@given(data=st.data())
def test_fuzzed_libraries(files: Files, data):
    library = files[f"{LIB}libtbe_aot.so"]
    # Where the tables and the pointers between them are, and the headers that lead there.
    places = list(range(64))
    for section in Elf(library, "library").sections:
        if section.name.startswith((".rela.dyn", ".data.rel.ro", ".dynsym")) and section.data:
            start = library.index(section.data)
            places += range(start, start + len(section.data))
    replaced = st.lists(st.tuples(st.sampled_from(places), st.integers(0, 255)), max_size=6)
    how = (data.draw(replaced), data.draw(st.sampled_from([None, None, len(library) - 500])))
    tolerant(lambda made: read_library(made, "library"), changed(library, how))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def places_in(value, path=()):
    """The paths of all values in a JSON document."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from places_in(item, (*path, key))


@MANY
@given(data=st.data())
def test_fuzzed_manifests(files: Files, data):
    document = json.loads(files[f"{LIB}manifest.json"])
    path = data.draw(st.sampled_from(list(places_in(document))[1:]))
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = data.draw(JSON)
    tolerant(lambda made: parse_manifest(made, "manifest.json"), json.dumps(document).encode())


@settings(MANY, max_examples=120)
@given(data=st.data())
def test_whatever_the_manifest_says_every_command_ends_in_words(files: Files, tmp_path: Path, data):
    document = json.loads(files[f"{LIB}manifest.json"])
    path = data.draw(st.sampled_from(list(places_in(document))[1:]))
    target = document
    for key in path[:-1]:
        target = target[key]
    # Of the same kind more often than not: what is of another kind is found when it is read.
    same = st.sampled_from([0, 1, -1, 2**40, "fp16", "sm90", True]) | JSON
    target[path[-1]] = data.draw(same)
    changed_files = {**files, f"{LIB}manifest.json": json.dumps(document).encode()}
    source = open_source(write_package(tmp_path, changed_files))
    for ask in (
        verify,
        lambda asked: list_variants(asked, sort="size"),
        lambda asked: show(asked, "scale__fp16_256_long"),
        lambda asked: explain(asked.manifest, Call(axes={"dtype": "fp16"}), kernel="scale"),
        make_report,
        lambda asked: compare(asked.manifest, asked.manifest, ("a", "b")),
        lambda asked: make_baseline(asked.manifest),
    ):
        with contextlib.suppress(AuditError):
            ask(source)


@MANY
@given(text=st.binary(max_size=200))
def test_fuzzed_records(text: bytes):
    tolerant(lambda made: read_record(made, "RECORD"), text)


@MANY
@given(text=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_fuzzed_checksums(text: bytes):
    tolerant(lambda made: checksums(made, "checksums.json"), text)


def replaced(document, data):
    """A JSON document with another value at one place."""
    path = data.draw(st.sampled_from(list(places_in(document))))
    if not path:
        return data.draw(JSON)
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = data.draw(JSON)
    return document


# The files that are small and that a distribution is judged by.
@pytest.mark.parametrize("name", [SBOM, BUILD_RECORD, RECORD, f"{DISTRIBUTION}/METADATA", f"{DISTRIBUTION}/WHEEL"])  # fmt: skip
def test_fuzzed_documents_of_a_distribution(files: Files, tmp_path: Path, name: str):
    """Whatever they say, ``verify`` ends, and what changed their meaning is a finding."""
    small = {name: data for name, data in files.items() if not name.startswith(LIB)}
    package = write_package(tmp_path, {**small, f"{LIB}manifest.json": files[f"{LIB}manifest.json"]})  # fmt: skip
    path = tmp_path / name
    original = path.read_bytes()

    @settings(MANY, max_examples=150)
    @given(data=st.data())
    def fuzz(data):
        if name in {SBOM, BUILD_RECORD}:
            made = json.dumps(replaced(json.loads(original), data)).encode()
        else:
            made = changed(original, data.draw(changes(len(original))))
        path.write_bytes(made)
        tolerant(lambda place: verify(open_source(place)), package)

    fuzz()


@MANY
@given(data=st.data())
def test_fuzzed_archives(data):
    """The directory and the heads of members of a small archive, which two readers look at."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = write_wheel(Path(folder) / "a.whl", {"tbe_aot/a.py": b"a" * 50, "tbe_aot/b.so": b"b"})  # fmt: skip
        wheel.write_bytes(changed(wheel.read_bytes(), data.draw(changes(wheel.stat().st_size))))
        tolerant(lambda place: verify(open_source(place)), wheel)


def test_a_cubin_of_overlapping_sections(files: Files):
    """Of overlapping sections a small file could hold any number, each of which would be copied."""
    pack = parse_pack(files[f"{LIB}sm90.pack"], "pack")
    cubin = pack.cubin(0)
    count = 60_000
    header = bytearray(cubin[:64])
    struct.pack_into("<Q", header, 40, 64)
    struct.pack_into("<HHH", header, 58, 64, count, 0)
    section = struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, 0, 64 + 64 * count, 0, 0, 1, 0)
    tracemalloc.start()
    with pytest.raises(AuditError, match="its sections overlap"):
        read_cubin(bytes(header) + section * count, "cubin")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20


def test_names_of_sections_have_an_end(files: Files):
    """A table of names without an end is no reason to read all of it for each section."""
    library = files[f"{LIB}libtbe_aot.so"]
    names = next(s for s in Elf(library, "library").sections if s.name == ".shstrtab")
    start = library.index(names.data)
    endless = library[:start] + b"x" * len(names.data) + library[start + len(names.data) :]
    assert all(len(s.name) <= 4096 for s in Elf(endless + b"x" * 9000, "library").sections)


def test_a_pack_of_overlapping_cubins():
    _, data = encode_pack("sm90", CUBINS)
    entry = data[HEADER.size : HEADER.size + ENTRY.size]
    made = bytearray(data)
    sha256, offset, _ = ENTRY.unpack(entry)
    for number in range(len(CUBINS)):
        ENTRY.pack_into(made, HEADER.size + ENTRY.size * number, sha256, offset, len(data) - offset)
    with pytest.raises(AuditError, match="its cubins overlap"):
        parse_pack(bytes(made), "pack")


@MANY
@given(data=st.data())
def test_fuzzed_baselines(files: Files, data):
    text = make_baseline(parse_manifest(files[f"{LIB}manifest.json"], "manifest"))
    how = data.draw(changes(len(text)))
    tolerant(lambda made: read_baseline(made, "baseline"), changed(text, how))
