"""A pack that is not the one of the library is refused on the device as well; what is in it never runs."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import tbe_aot
from tests.gpu import installed
from tests.gpu.processes import run_program

HEADER, ENTRY = 40, 48


def change_the_index(data: bytearray) -> None:
    """One byte of the hash of the first cubin."""
    data[HEADER] ^= 1


def change_every_cubin(data: bytearray) -> None:
    """One byte in the middle of each."""
    (count,) = struct.unpack_from("<I", data, 12)
    for entry in range(count):
        offset, size = struct.unpack_from("<QQ", data, HEADER + ENTRY * entry + 32)
        data[offset + size // 2] ^= 1


def truncate(data: bytearray) -> None:
    """All but the last byte."""
    del data[-1:]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_the_index, "it belongs to another build or was changed"),
        (change_every_cubin, "was changed: its SHA-256 is not"),
        (truncate, "it is truncated"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_changed_pack_is_refused(change: Callable[[bytearray], None], reason, tmp_path):
    """flashinfer 4200, 4925."""
    package = Path(tbe_aot.__file__).resolve().parent
    shutil.copytree(package, tmp_path / "tbe_aot")
    pack = tmp_path / "tbe_aot" / "lib" / f"{installed.arch()}.pack"
    data = bytearray(pack.read_bytes())
    change(data)
    pack.write_bytes(data)
    message = run_program("changed_pack", PYTHONPATH=str(tmp_path))
    assert f"the pack {pack} is refused: " in message
    assert reason in message
