"""How wide the global loads of compiled kernels are, read from their disassembly.

A lost alignment hint halves a kernel's speed and fails no numeric test; the machine code shows it. Starting
nvdisasm costs far more than reading one kernel, so the code of many cubins is joined and disassembled at once.
"""

from __future__ import annotations

import bisect
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .archs import Arch
from .cache import CubinCache
from .cubin import text_section
from .toolchain import run_tool, tool_version

# Raise it when the counting changes: stored counts are then made anew.
READER_VERSION = 1
CUBINS_PER_PASS = 64
LOAD = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?LDG(?:STS)?((?:\.\w+)*)", re.MULTILINE)
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}


def load_bytes(modifiers: str) -> int:
    """Bytes that each lane loads, from an instruction's modifiers such as ``.E.128``."""
    for modifier in modifiers.split("."):
        if modifier in WIDTHS:
            return WIDTHS[modifier]
    return 4


def count_loads(listing: str, starts: Sequence[int]) -> list[dict[str, int]]:
    """Global loads by width in bytes for each of the joined sections, which start at these addresses."""
    counters: list[Counter[int]] = [Counter() for _ in starts]
    for match in LOAD.finditer(listing):
        section = bisect.bisect_right(starts, int(match.group(1), 16)) - 1
        counters[section][load_bytes(match.group(2))] += 1
    return [
        {str(width): counter[width] for width in sorted(counter, reverse=True)}
        for counter in counters
    ]


def _disassemble(arch: Arch, texts: Sequence[bytes]) -> list[dict[str, int]]:
    starts = []
    joined = bytearray()
    for text in texts:
        starts.append(len(joined))
        joined += text
    with tempfile.TemporaryDirectory(prefix="aot_build-sass-") as folder:
        path = Path(folder) / "joined.bin"
        path.write_bytes(joined)
        listing = run_tool("nvdisasm", "-b", arch.disassembler_target, path)
    return count_loads(listing, starts)


def global_loads(arch: Arch, cubins: Sequence[str], cache: CubinCache) -> dict[str, dict[str, int]]:
    """Global loads by width of every cubin (sha256); counts are kept in the cache."""
    reader = f"{READER_VERSION}/{tool_version('nvdisasm')}"
    found = {}
    missing = []
    for sha256 in cubins:
        stored = cache.get_sass(sha256, reader)
        if stored is None:
            missing.append(sha256)
        else:
            found[sha256] = stored
    for start in range(0, len(missing), CUBINS_PER_PASS):
        group = missing[start : start + CUBINS_PER_PASS]
        texts = [text_section(cache.cubin(sha256)) for sha256 in group]
        for sha256, counts in zip(group, _disassemble(arch, texts), strict=True):
            cache.put_sass(sha256, reader, counts)
            found[sha256] = counts
    return found
