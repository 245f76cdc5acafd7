"""The pack's bytes, and what is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot_build.errors import BuildError
from aot_build.files import sha256_hex
from aot_build.pack import decode_index, encode_pack


def by_hash(*cubins: bytes) -> dict[str, bytes]:
    return {sha256_hex(cubin): cubin for cubin in cubins}


@given(st.sets(st.binary(min_size=1, max_size=70), max_size=6))
def test_round_trip(cubins: set[bytes]):
    index, data = encode_pack("sm90", by_hash(*cubins))
    decoded = decode_index(data)
    assert decoded.arch == "sm90"
    assert decoded.sha256 == sha256_hex(index)
    assert [sha256 for sha256, _, _ in decoded.entries] == sorted(by_hash(*cubins))
    for sha256, offset, size in decoded.entries:
        assert offset % 16 == 0
        assert sha256_hex(data[offset : offset + size]) == sha256


def test_bytes_are_those_of_the_format():
    index, data = encode_pack("sm100", by_hash(b"one", b"two"))
    first, second = sorted([b"one", b"two"], key=sha256_hex)
    expected_index = (
        b"TBEAOTPK"
        + struct.pack("<II", 1, 2)
        + b"sm100".ljust(16, b"\0")
        + struct.pack("<Q", 160 + 3)
        + bytes.fromhex(sha256_hex(first))
        + struct.pack("<QQ", 144, 3)
        + bytes.fromhex(sha256_hex(second))
        + struct.pack("<QQ", 160, 3)
    )
    assert index == expected_index
    assert len(index) == 40 + 48 * 2 == 136
    assert data == expected_index + b"\0" * 8 + first + b"\0" * 13 + second


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "shorter than its header"),
        (lambda data: b"TBEAOTPX" + data[8:], "not a pack of version 1"),
        (lambda data: data[:8] + b"\2" + data[9:], "version 2"),
        (lambda data: data[:-1], "it has"),
        (lambda data: data[:72] + struct.pack("<Q", 1) + data[80:], "outside the pack"),
        (lambda data: data[:80] + struct.pack("<Q", 10**6) + data[88:], "outside the pack"),
    ],
)
def test_damaged_packs_are_refused(damage, message):
    _, data = encode_pack("sm90", by_hash(b"cubin"))
    with pytest.raises(BuildError, match=message):
        decode_index(damage(data))
