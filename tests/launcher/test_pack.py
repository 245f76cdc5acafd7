"""Packs: what the launcher shows of them, and the ones it refuses."""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aot_build.pack import ENTRY, HEADER, decode_index, encode_pack
from tests.launcher.planned import plan_forward
from tests.launcher.support import Built, Child, Process, error_of, process
from tests.launcher.test_driver import FORWARD, LAUNCH

if TYPE_CHECKING:
    from collections.abc import Callable


def _show(child: Child) -> Any:
    packs = [
        (pack.arch, pack.path, pack.file_size, [(b.sha256, b.offset, b.size) for b in pack.blobs])
        for pack in child.launcher.packs()
    ]
    index_hashes = {arch.name: arch.index_sha256 for arch in child.launcher.archs()}
    built = {
        arch: sum(
            v.blob is not None
            for k in child.launcher.kernels()
            for v in child.launcher.variants(k.name, arch)
        )
        for arch in index_hashes
    }
    return packs, index_hashes, built, child.launcher.verify()


def test_packs_as_they_are(built: Built, shared: Process) -> None:
    packs, index_hashes, built_variants, verified = shared.run(_show)
    assert [arch for arch, *_ in packs] == ["sm90", "sm100"]
    lengths = set()
    for arch, path, file_size, blobs in packs:
        data = Path(path).read_bytes()
        assert Path(path) == built.package / "lib" / f"{arch}.pack"
        assert file_size == len(data)
        index = data[: HEADER.size + ENTRY.size * len(blobs)]
        assert hashlib.sha256(index).hexdigest() == index_hashes[arch]
        for sha256, offset, size in blobs:
            assert hashlib.sha256(data[offset : offset + size]).hexdigest() == sha256
            lengths.add(size % 64)
        # Every fake cubin is different; a profile leaves one out.
        assert built_variants[arch] == len(blobs) == verified[arch]
    # SHA-256 pads in one block or in two: both happened.
    assert min(lengths) < 56 <= max(lengths)


def _load(child: Child) -> Any:
    message = error_of(lambda: child.launcher.launch(plan_forward(child, FORWARD), 0))
    verified = error_of(child.launcher.verify)
    shown = error_of(child.launcher.packs)
    return message, verified, shown, child.standin.take(LAUNCH, "cuLibraryLoadData")


def _flip(position: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def _replace(position: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:position] + value + data[position + len(value) :]


def _of_another_build(data: bytes) -> bytes:
    """The same number of cubins, consistent in itself, but one of them was compiled otherwise."""
    cubins = [data[offset : offset + size] for _, offset, size in decode_index(data).entries]
    cubins[0] += b"\0"
    return encode_pack("sm90", {hashlib.sha256(cubin).hexdigest(): cubin for cubin in cubins})[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: b"", "it is truncated: 0 bytes are less than its header"),
        (lambda data: data[:39], "it is truncated: 39 bytes are less than its header"),
        (lambda data: data[:-1], "it is truncated: "),
        (lambda data: data[:100], "it is truncated: 100 of "),
        (lambda data: data + b"\0", "bytes, its header says "),
        (_flip(0), "it is not a pack"),
        (_replace(8, struct.pack("<I", 2)), "its format version is 2, this library reads 1"),
        (_replace(12, struct.pack("<I", 2**31)), "cubins is longer than the file"),
        (_replace(16, b"sm80\0"), "it holds cubins for sm80, not for sm90"),
        (_replace(12, struct.pack("<I", 1)), "it belongs to another build or was changed"),
        (_flip(40), "it belongs to another build or was changed"),
        (_flip(40 + 33), "it belongs to another build or was changed"),
        (_of_another_build, "it belongs to another build or was changed"),
    ],
)
def test_flashinfer_4200_4925_pack_is_refused_when_opened(
    built: Built, tmp_path: Path, change: Callable[[bytes], bytes], reason: str
) -> None:
    package, pack = _copy_package(built, tmp_path)
    pack.write_bytes(change(pack.read_bytes()))
    with process(Built(package, built.driver)) as running:
        messages = running.run(_load)
    for message in messages[:3]:
        assert message.startswith(f"the pack {pack} is refused: ")
        assert reason in message
        assert message.endswith(". Reinstall tbe-aot")
    assert messages[3] == []


def _copy_package(built: Built, tmp_path: Path) -> tuple[Path, Path]:
    package = tmp_path / "package"
    shutil.copytree(built.package, package)
    return package, package / "lib" / "sm90.pack"


def test_missing_pack(built: Built, tmp_path: Path) -> None:
    package, pack = _copy_package(built, tmp_path)
    pack.unlink()
    with process(Built(package, built.driver)) as running:
        messages = running.run(_load)
    for message in messages[:3]:
        assert message.startswith(f"cannot open the pack {pack}: No such file or directory")


def _load_after_change(child: Child, changed: str) -> Any:
    """Load every variant of two kernels; the errors by variant."""
    errors = {}
    for kernel in ("check_indices", "check_offsets"):
        for label in ("i32", "i64"):
            name = f"{kernel}__{label}"
            axes = {"index_width": [label]}
            errors[name] = error_of(lambda: child.launcher.preload(0, kernel, axes))  # noqa: B023 - called at once
    verified = error_of(child.launcher.verify)
    shown = [pack.arch for pack in child.launcher.packs()]
    return errors, verified, shown, child.standin.take("cuLibraryLoadData")


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_flashinfer_4200_4925_one_changed_byte_refuses_that_cubin_alone(
    built: Built, tmp_path: Path, where: str
) -> None:
    package, pack = _copy_package(built, tmp_path)
    data = pack.read_bytes()
    name = "check_indices__i32"
    inside = data.index(f"{name} sm90".encode())
    (begin, size), *_ = [
        (offset, size)
        for _, offset, size in decode_index(data).entries
        if offset <= inside < offset + size
    ]
    position = {"first": begin, "middle": inside, "last": begin + size - 1}[where]
    pack.write_bytes(_flip(position)(data))
    with process(Built(package, built.driver)) as running:
        errors, verified, shown, calls = running.run(_load_after_change, name)
    refused = errors.pop(name)
    assert refused.startswith(f"the pack {pack} is refused: cubin ")
    assert "was changed: its SHA-256 is not " in refused
    assert verified == refused
    assert set(errors.values()) == {""}
    assert shown == ["sm90", "sm100"]
    assert len(calls) == 3
