"""What is read from NVIDIA's tools, and what the checks on it say."""

from __future__ import annotations

import pytest

from aot_build.build import BuildResult
from aot_build.cache import CubinCache
from aot_build.cubin import (
    CubinParam,
    CubinRecord,
    elf_abi,
    parse_params,
    parse_resource_usage,
    parse_spill_bytes,
    text_section,
)
from aot_build.errors import BuildError
from aot_build.pack import read_reports
from aot_build.plan import Build, Plan
from aot_build.sass import count_loads, load_bytes
from aot_build.verify import check_variant

PTXAS_LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Function properties for k
    64 bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers
"""


def test_spills():
    assert parse_spill_bytes(PTXAS_LOG.format(stores=0, loads=0)) == 0
    assert parse_spill_bytes(PTXAS_LOG.format(stores=8, loads=16)) == 24
    with pytest.raises(BuildError, match="did not report spills"):
        parse_spill_bytes("ptxas info    : 0 bytes gmem")


def test_resource_usage():
    text = " Function k:\n  REG:30 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:568 TEXTURE:0"
    assert parse_resource_usage(text) == {"REG": 30, "STACK": 0, "SHARED": 1024}
    with pytest.raises(BuildError, match="does not say"):
        parse_resource_usage("Resource usage:")


def test_params_come_in_order():
    text = (
        "Value: Index : 0x0\tOrdinal : 0x1\tOffset  : 0x10\tSize    : 0x4\n"
        "Value: Index : 0x0\tOrdinal : 0x0\tOffset  : 0x0\tSize    : 0x8\n"
    )
    assert parse_params(text) == [
        CubinParam(ordinal=0, offset=0, size=8),
        CubinParam(ordinal=1, offset=16, size=4),
    ]


def test_not_an_elf_file():
    with pytest.raises(BuildError, match="not an ELF file"):
        elf_abi(b"")


LISTING = """\
\t.headerflags\t@"EF_CUDA_64BIT_ADDRESS"
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P6 LDG.E.U16 R9, desc[UR6][R2.64] ;
        /*0020*/                   LDG.E.128 R4, desc[UR6][R2.64+0x20] ;
        /*0080*/              @P0  LDG.E.EF.128.CONSTANT R4, desc[UR6][R2.64] ;
        /*0090*/             @!UP0 LDG.E R4, desc[UR6][R2.64] ;
        /*00a0*/                   LDGSTS.E.64 [R4], desc[UR6][R2.64] ;
        /*00b0*/                   STG.E.128 desc[UR6][R2.64], R4 ;
"""


def test_loads_are_counted_per_section():
    assert count_loads(LISTING, [0, 0x80]) == [{"16": 1, "2": 1}, {"16": 1, "8": 1, "4": 1}]


@pytest.mark.parametrize(
    ("modifiers", "width"),
    [(".E.U8", 1), (".E.S16", 2), (".E", 4), (".E.64", 8), (".E.EF.128", 16), (".E.ENL2.256", 32)],
)
def test_load_width(modifiers: str, width: int):
    assert load_bytes(modifiers) == width


def record(**changes: object) -> CubinRecord:
    fields = {
        "cubin_sha256": "0" * 64,
        "cubin_bytes": 4000,
        "entry": "scale_kernel",
        "registers": 30,
        "spill_bytes": 0,
        "stack_bytes": 0,
        "shared_bytes": 0,
        "static_shared_bytes": 0,
        "num_warps": 1,
        "elf_abi": "51/7",
        "params": [
            CubinParam(ordinal=number, offset=offset, size=size)
            for number, (offset, size) in enumerate(
                [(0, 8), (8, 8), (16, 1), (24, 8), (32, 4), (40, 8), (48, 8)]
            )
        ],
    }
    return CubinRecord.model_validate({**fields, **changes})


@pytest.fixture
def scale_build(toy_build: BuildResult) -> tuple[Plan, Build]:
    """The plan, and the build that must show 16-byte loads."""
    return toy_build.plan, toy_build.plan.kernels["scale"].variants[1].builds["sm90"]


@pytest.mark.parametrize(
    ("changes", "loads", "problems"),
    [
        ({}, {"16": 2}, []),
        ({}, {"16": 2, "4": 3}, []),
        ({}, {"16": 1}, ["row_loads: at least 2 loads of 16 bytes; found 1 of 16 bytes"]),
        ({}, {"32": 2, "16": 2}, ["row_loads: the widest global load must have 16 bytes; found 2 of 32 bytes, 2 of 16 bytes"]),
        ({}, {}, ["row_loads: the widest global load must have 16 bytes; found none"]),
        ({}, {"16": 2, "2": 1}, ["row_loads: no global load of 1 or 2 bytes; found 2 of 16 bytes, 1 of 2 bytes"]),
        ({"registers": 65}, {"16": 2}, ["budget exceeded: registers = 65; allowed: at most 64"]),
        ({"spill_bytes": 4, "stack_bytes": 8}, {"16": 2}, ["budget exceeded: spill_bytes = 4; allowed: at most 0", "budget exceeded: stack_bytes = 8; allowed: at most 0"]),
        ({"params": []}, {"16": 2}, ["parameters (offset, size) are [] in the cubin, [(0, 8), (8, 8), (16, 1), (24, 8), (32, 4), (40, 8), (48, 8)] in the struct"]),
    ],
)  # fmt: skip
def test_claims(scale_build, changes, loads, problems):
    plan, build = scale_build
    found = list(check_variant(plan.kernels["scale"], build, record(**changes), loads))
    assert found == problems


def test_real_cubins_show_what_their_specs_claim(toy_build: BuildResult, shared_cache):
    work = toy_build.out / ".work"
    reports = read_reports([work / "sm90.json", work / "sm100.json"])
    assert {report.arch: len(report.blobs) for report in reports.values()} == {
        "sm90": 6,
        "sm100": 5,
    }
    wide = reports["sm90"].records["scale__fp16_256_long"]
    assert reports["sm90"].global_load_bytes[wide.cubin_sha256] == {"16": 2}
    cubin = CubinCache(shared_cache).cubin(wide.cubin_sha256)
    assert len(text_section(cubin)) % 128 == 0
    assert wide.elf_abi == elf_abi(cubin) == "51/7"
    assert wide.entry == "scale_kernel"
