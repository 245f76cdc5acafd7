"""Whether a wheel is put together as a build does it: every byte of the archive belongs to something, and says it twice.

A zip archive repeats most of what it says of a member, and readers look at one of the places only. What differs between them, or lies
between members, was not written by a build. Nor was a member of a name that another one has, or that leads out of the wheel's folders. The
one thing that this cannot see is deflated data that was changed into other deflated data for the same bytes; the wheel's own hash, which an
index or a release page has, sees that.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator

from .names import name_problems
from .source import largest

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_LOCAL_MARK, _CENTRAL_MARK = 0x04034B50, 0x02014B50
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_UNIX = 3
_FOLDER = 0x10


def _attributes(name: str) -> int:
    """The permissions that a build gives a member, as the directory has them."""
    if name.endswith("/"):
        return 0o40755 << 16 | _FOLDER
    if name.endswith(".so"):
        return 0o100755 << 16
    # setuptools' own choice for this one.
    return (0o100664 if name.endswith(".dist-info/RECORD") else 0o100644) << 16


def archive_problems(
    data: bytes, distribution: str | None, contents: dict[str, bytes]
) -> Iterator[tuple[str, str]]:
    """What is not as it should be: the member (or empty for the archive) and a sentence.

    Args:
        data: the wheel's bytes.
        distribution: its ``.dist-info`` folder.
        contents: gets the members' bytes as far as they are right; to unpack them takes most of the time.
    """
    names: list[str] = []
    yield from _structure_problems(data, names, contents)
    yield from name_problems(names, distribution)


def _structure_problems(
    data: bytes, names: list[str], contents: dict[str, bytes]
) -> Iterator[tuple[str, str]]:
    """The same of bytes alone; ``names`` gets the members as far as they can be read."""
    end = len(data) - _END.size
    if end < 0 or data[end : end + 4] != b"PK\x05\x06":
        yield (
            "",
            "does not end with a zip archive's directory: bytes were cut off, appended or changed",
        )
        return
    _, disk, first_disk, here, count, size, start, comment = _END.unpack_from(data, end)
    if disk or first_disk or here != count or comment or start + size != end:
        yield "", "the end of its directory contradicts the directory"
        return
    position = start
    offset = 0
    for _ in range(count):
        if position + _CENTRAL.size > end:
            yield "", "its directory is cut off"
            return
        central = _CENTRAL.unpack_from(data, position)
        name_size, extra_size, note_size = central[10:13]
        name_end = position + _CENTRAL.size + name_size
        raw_name = data[position + _CENTRAL.size : name_end]
        name = raw_name.decode("utf-8", "replace")
        names.append(name)
        position = name_end + extra_size + note_size
        found = _content(data, central, raw_name, offset, start)
        if isinstance(found, str):
            yield name, found
            return
        contents[name] = found
        offset += _LOCAL.size + name_size + central[8]
    if position != end:
        yield "", "its directory has bytes that belong to no member"
    if offset != start:
        yield "", f"{start - offset} bytes at {offset} belong to no member"


def _content(
    data: bytes, central: tuple[int, ...], name: bytes, offset: int, start: int
) -> bytes | str:
    """The bytes of one member, or what is wrong with it; ``offset`` is where it must begin, ``start`` where the directory does."""
    signature, made, needed, flags, method, time, date, crc, packed, size, *_ = central
    _, extra, note, disk, internal, external, at = central[10:]
    if signature != _CENTRAL_MARK:
        return "its entry in the directory is none"
    if made >> 8 != _UNIX or made & 0xFF != needed or needed > 20 or extra or note or disk:
        return "its entry in the directory is not as a build writes it"
    text = name.decode("utf-8", "replace")
    if internal or external != _attributes(text) or method not in _METHODS or flags & ~0x0800:
        return f"its attributes, flags or compression are not as a build writes them (mode {external >> 16:o})"
    if at != offset:
        return f"it begins at {at}, where the members before it end at {offset}"
    if offset + _LOCAL.size + len(name) + packed > start:
        return f"its {packed} bytes at {offset} reach into the directory at {start}"
    if size > largest(text):
        return f"it would have {size} bytes; no build writes more than {largest(text)}"
    local = _LOCAL.unpack_from(data, offset)
    expected = (_LOCAL_MARK, needed, flags, method, time, date, crc, packed, size, len(name), 0)
    if local != expected or data[offset + _LOCAL.size : offset + _LOCAL.size + len(name)] != name:
        return "its header contradicts its entry in the directory"
    begin = offset + _LOCAL.size + len(name)
    return _unpacked(data[begin : begin + packed], method, crc, size)


def _unpacked(packed: bytes, method: int, crc: int, size: int) -> bytes | str:
    if method == zipfile.ZIP_STORED:
        right = zlib.crc32(packed) == crc and len(packed) == size
        return packed if right else "its checksum is wrong"
    inflate = zlib.decompressobj(-15)
    try:
        # One byte more than there should be is enough to see that there is more.
        content = inflate.decompress(packed[:-1], size + 1)
        if len(content) > size:
            return "its data is longer than it says"
        padding = inflate.copy()
        tail = inflate.decompress(packed[-1:], size + 1 - len(content))
    except zlib.error as error:
        return f"its compressed data is damaged: {error}"
    content += tail
    if not inflate.eof or inflate.unused_data or len(content) != size or zlib.crc32(content) != crc:
        return "its checksum is wrong"
    # Bits after the last code are zero: clearing the highest one that is set must break or change what it says.
    last = packed[-1]
    if last:
        try:
            other = padding.decompress(bytes([last & ~(1 << (last.bit_length() - 1))]))
        except zlib.error:
            return content
        if other == tail and padding.eof and not padding.unused_data:
            return "bits after the end of its compressed data are set"
    return content
