"""What orders memory in the machine code of this build: a lost fence fails no numeric test, or one run in a million."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tbe_aot
from aot_build.archs import ARCHS
from aot_build.cubin import text_section
from aot_build.pack import decode_index
from aot_build.toolchain import run_tool
from tbe_aot import inspection

KERNEL = "sum_and_update_long_runs"
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


def instructions(arch: str, folder: Path) -> dict[str, list[str]]:
    """By variant of the kernel that this build holds: names of the instructions, in their order."""
    pack = (Path(tbe_aot.__file__).parent / "lib" / f"{arch}.pack").read_bytes()
    entries = decode_index(pack).entries
    found = {}
    for variant in inspection.read_manifest()["kernels"][KERNEL]["variants"]:
        if variant["arch"] == arch and variant["built"]:
            _, offset, size = entries[variant["blob"]]
            code = folder / "code.bin"
            code.write_bytes(text_section(pack[offset : offset + size]))
            listing = run_tool("nvdisasm", "-b", ARCHS[arch].disassembler_target, code)
            found[variant["name"]] = INSTRUCTION.findall(listing)
    return found


def faults(names: list[str]) -> list[str]:
    """What is missing between the stores of a partial sum and the loads of all of a run."""
    counts = [i for i, name in enumerate(names) if name.startswith("ATOMG")]
    if len(counts) != 1 or ".ADD" not in names[counts[0]] or ".STRONG.GPU" not in names[counts[0]]:
        return [f"one atomic addition at the scope of the GPU, found {[names[i] for i in counts]}"]
    (count,) = counts

    def places(start: str, *parts: str) -> list[int]:
        wanted = [i for i, name in enumerate(names) if name.startswith(start)]
        return [i for i in wanted if all(part in names[i] for part in parts)]

    missing = []
    stores = [i for i in places("STG") if i < count]
    fences = [i for i in places("MEMBAR", ".GPU") if i < count]
    barriers = places("BAR.SYNC")
    loads = places("LDG", ".STRONG.GPU")
    if not stores:
        missing.append("stores of the partial sum")
    elif not any(stores[-1] < i < count for i in fences):
        missing.append("a fence between the stores and the count")
    elif not any(stores[-1] < i < fences[-1] for i in barriers):
        missing.append("a barrier between the stores of all threads and the fence of one")
    if not loads:
        missing.append("loads of the partial sums from the L2 cache")
    elif loads[0] < count:
        missing.append("all loads of the partial sums after the count")
    elif not any(count < i < loads[0] for i in barriers):
        missing.append("a barrier between the count and the loads")
    elif not any(count < i < loads[0] for i in places("CCTL.IVALL")):
        missing.append("dropping the lines of the L1 cache between the count and the loads")
    return missing


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_partial_sums_are_released_and_acquired(arch: str, tmp_path: Path) -> None:
    if arch not in inspection.read_manifest()["archs"]:
        pytest.skip(f"this build has no {arch}")
    found = instructions(arch, tmp_path)
    assert found
    assert {name: wrong for name, names in found.items() if (wrong := faults(names))} == {}


RIGHT = ["STG.E", "BAR.SYNC", "MEMBAR.ALL.GPU", "ATOMG.E.ADD.STRONG.GPU", "CCTL.IVALL", "BAR.SYNC"]
RIGHT += ["LDG.E.STRONG.GPU", "STG.E"]


def test_the_right_order_has_no_faults() -> None:
    assert faults(RIGHT) == []


@pytest.mark.parametrize("place", range(len(RIGHT) - 1))
def test_what_is_left_out_is_missed(place: int) -> None:
    assert len(faults(RIGHT[:place] + RIGHT[place + 1 :])) == 1


def test_loads_through_the_l1_cache_are_missed() -> None:
    weaker = [name.replace("LDG.E.STRONG.GPU", "LDG.E") for name in RIGHT]
    assert faults(weaker) == ["loads of the partial sums from the L2 cache"]
    early = ["LDG.E.STRONG.GPU", *RIGHT]
    assert faults(early) == ["all loads of the partial sums after the count"]
