"""What the machine code of compiled kernels does, counted in their disassembly.

A lost alignment hint halves a kernel's speed and fails no numeric test, a spilled register costs as silently; the machine
code shows both. Starting nvdisasm costs far more than reading one kernel, so the code of many cubins is joined and
disassembled at once.
"""

from __future__ import annotations

import bisect
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from .archs import Arch
from .cache import CubinCache
from .cubin import text_section
from .toolchain import run_tool, tool_version

# Raise it when the counting changes: stored counts are then made anew.
READER_VERSION = 2
CUBINS_PER_PASS = 64
INSTRUCTION = re.compile(
    r"^\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)((?:\.\w+)*)", re.MULTILINE
)
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}

GLOBAL_LOADS = {"LDG", "LDGSTS"}
GLOBAL_STORES = {"STG"}
# Which count an instruction adds to, by its name without modifiers.
KINDS = {
    "local_loads": {"LDL"},
    "local_stores": {"STL"},
    "shared_loads": {"LDS", "LDSM"},
    "shared_stores": {"STS", "STSM"},
    "global_atomics": {"ATOMG", "REDG", "ATOM", "RED"},
    "shared_atomics": {"ATOMS"},
    "fences": {"MEMBAR", "FENCE"},
    "barriers": {"BAR"},
    "calls": {"CALL"},
}
FP64 = re.compile(r"D(?:ADD|FMA|MUL|SETP|MNMX|MMA)$")
# HMMA, IMMA, DMMA, QMMA, OMMA; HGMMA and its kin of sm90; UTCHMMA and its kin of sm100.
TENSOR = re.compile(r"(?:UTC)?[HIDQOB]G?MMA$")


class SassCounts(BaseModel):
    """Instructions of one kernel by what they do; loads and stores of global memory by bytes a lane.

    ``fp64`` counts arithmetic, comparisons and conversions with 64-bit floats, ``ordered`` the loads and stores of global memory
    that are ordered with those of other threads (acquire and release), ``tensor`` matrix products on tensor cores. ``instructions``
    leaves out the padding at the end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    instructions: int
    global_load_bytes: dict[str, int]
    global_store_bytes: dict[str, int]
    local_loads: int
    local_stores: int
    shared_loads: int
    shared_stores: int
    global_atomics: int
    shared_atomics: int
    ordered: int
    fences: int
    barriers: int
    calls: int
    fp64: int
    tensor: int


def access_bytes(modifiers: str) -> int:
    """Bytes that each lane loads or stores, from an instruction's modifiers such as ``.E.128``."""
    for modifier in modifiers.split("."):
        if modifier in WIDTHS:
            return WIDTHS[modifier]
    return 4


class _Counter:
    """Counts of one kernel while its listing is read."""

    def __init__(self) -> None:
        self.instructions = 0
        self.loads: Counter[int] = Counter()
        self.stores: Counter[int] = Counter()
        self.kinds: Counter[str] = Counter()

    def add(self, name: str, modifiers: str) -> None:
        if name == "NOP":
            return
        self.instructions += 1
        if name in GLOBAL_LOADS:
            self.loads[access_bytes(modifiers)] += 1
        elif name in GLOBAL_STORES:
            self.stores[access_bytes(modifiers)] += 1
        else:
            for kind, names in KINDS.items():
                self.kinds[kind] += name in names
            self.kinds["tensor"] += TENSOR.match(name) is not None
        self.kinds["ordered"] += name in {"LDG", "STG"} and ".STRONG" in modifiers
        self.kinds["fp64"] += FP64.match(name) is not None or ".F64" in modifiers

    def counts(self) -> SassCounts:
        return SassCounts(
            instructions=self.instructions,
            global_load_bytes=_by_width(self.loads),
            global_store_bytes=_by_width(self.stores),
            **{kind: self.kinds[kind] for kind in (*KINDS, "ordered", "fp64", "tensor")},
        )


def _by_width(counter: Counter[int]) -> dict[str, int]:
    return {str(width): counter[width] for width in sorted(counter, reverse=True)}


def count_instructions(listing: str, starts: Sequence[int]) -> list[SassCounts]:
    """The counts of each of the joined sections, which start at these addresses."""
    counters = [_Counter() for _ in starts]
    for address, name, modifiers in INSTRUCTION.findall(listing):
        section = bisect.bisect_right(starts, int(address, 16)) - 1
        counters[section].add(name, modifiers)
    return [counter.counts() for counter in counters]


def _disassemble(arch: Arch, texts: Sequence[bytes]) -> list[SassCounts]:
    starts = []
    joined = bytearray()
    for text in texts:
        starts.append(len(joined))
        joined += text
    with tempfile.TemporaryDirectory(prefix="aot_build-sass-") as folder:
        path = Path(folder) / "joined.bin"
        path.write_bytes(joined)
        listing = run_tool("nvdisasm", "-b", arch.disassembler_target, path)
    return count_instructions(listing, starts)


def sass_counts(arch: Arch, cubins: Sequence[str], cache: CubinCache) -> dict[str, SassCounts]:
    """The counts of every cubin (sha256); they are kept in the cache."""
    reader = f"{READER_VERSION}/{tool_version('nvdisasm')}"
    found = {}
    missing = []
    for sha256 in cubins:
        stored = cache.get_sass(sha256, reader)
        if stored is None:
            missing.append(sha256)
        else:
            found[sha256] = SassCounts.model_validate(stored)
    for start in range(0, len(missing), CUBINS_PER_PASS):
        group = missing[start : start + CUBINS_PER_PASS]
        texts = [text_section(cache.cubin(sha256)) for sha256 in group]
        for sha256, counts in zip(group, _disassemble(arch, texts), strict=True):
            cache.put_sass(sha256, reader, counts.model_dump())
            found[sha256] = counts
    return found
