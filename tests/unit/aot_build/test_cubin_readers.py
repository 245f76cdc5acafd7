"""What is read from NVIDIA's tools, and what the checks on it say."""

from __future__ import annotations

import pytest

from aot_build.archs import Limits
from aot_build.build import BuildResult
from aot_build.cache import CubinCache
from aot_build.cubin import (
    CubinParam,
    CubinRecord,
    elf_abi,
    named_barriers,
    parse_params,
    parse_resource_usage,
    parse_spill_bytes,
    text_section,
)
from aot_build.errors import BuildError
from aot_build.machine_code import MachineCode
from aot_build.occupancy import Occupancy, occupancy_of
from aot_build.pack import read_reports
from aot_build.plan import Build, Plan
from aot_build.sass import SassCounts, access_bytes, count_instructions
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
        /*00c0*/                   LDG.E.STRONG.GPU R4, desc[UR6][R2.64] ;
        /*00d0*/                   NOP ;
"""
INSTRUCTIONS = """\
        /*0000*/                   DFMA R2, R2, R4, R6 ;
        /*0010*/                   DSETP.GEU.AND P0, PT, R2, R4, PT ;
        /*0020*/                   F2F.F32.F64 R2, R4 ;
        /*0030*/                   LDL.64 R2, [R1] ;
        /*0040*/                   STL [R1], R2 ;
        /*0050*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0060*/                   STS.128 [R2], R4 ;
        /*0070*/                   ATOMS.POPC.INC.32 RZ, [R2] ;
        /*0080*/                   REDG.E.ADD.STRONG.GPU desc[UR6][R2.64], R4 ;
        /*0090*/                   ATOMG.E.EXCH.64.STRONG.GPU R2, desc[UR6][R2.64], R4 ;
        /*00a0*/                   STG.E.STRONG.GPU desc[UR6][R2.64], R4 ;
        /*00b0*/                   MEMBAR.SC.GPU ;
        /*00c0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00d0*/                   CALL.REL.NOINC 0x100 ;
        /*00e0*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*00f0*/                   HGMMA.64x8x16.F32 R24, gdesc[UR4], R24 ;
        /*0100*/              @!P0 UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8] ;
        /*0110*/                   NOP ;
"""


def test_loads_and_stores_are_counted_per_section():
    first, second = count_instructions(LISTING, [0, 0x80])
    assert first.global_load_bytes == {"16": 1, "2": 1}
    assert second.global_load_bytes == {"16": 1, "8": 1, "4": 2}
    assert second.global_store_bytes == {"16": 1}
    assert (first.ordered, second.ordered) == (0, 1)
    assert (first.instructions, second.instructions) == (3, 5)


def test_instructions_are_counted_by_what_they_do():
    (found,) = count_instructions(INSTRUCTIONS, [0])
    assert found == SassCounts(
        instructions=17,
        global_load_bytes={},
        global_store_bytes={"4": 1},
        local_loads=1,
        local_stores=1,
        shared_loads=1,
        shared_stores=1,
        global_atomics=2,
        shared_atomics=1,
        ordered=1,
        fences=1,
        barriers=1,
        calls=1,
        fp64=3,
        tensor=3,
    )


# Blocks of 1, 4 and 8 warps, as NVIDIA's occupancy calculator has them for compute capability 9.0.
@pytest.mark.parametrize(
    ("num_warps", "registers", "shared_bytes", "expected"),
    [
        (1, 64, 0, (32, 32, 50.0, "registers")),
        (1, 32, 0, (32, 32, 50.0, "blocks")),
        (2, 32, 0, (32, 64, 100.0, "warps")),
        (4, 33, 0, (12, 48, 75.0, "registers")),
        (4, 65, 0, (7, 28, 43.8, "registers")),
        (4, 255, 0, (2, 8, 12.5, "registers")),
        (8, 32, 100 * 1024, (2, 16, 25.0, "shared")),
        (8, 32, 227 * 1024, (1, 8, 12.5, "shared")),
    ],
)
def test_occupancy(num_warps: int, registers: int, shared_bytes: int, expected: tuple[object, ...]):
    found = occupancy_of(
        Limits(), num_warps=num_warps, registers=registers, shared_bytes=shared_bytes
    )
    assert (found.blocks, found.warps, found.percent, found.limited_by) == expected


def test_a_block_that_never_fits():
    with pytest.raises(BuildError, match="no block of 4 warps"):
        occupancy_of(Limits(), num_warps=4, registers=32, shared_bytes=227 * 1024 + 1)


@pytest.mark.parametrize(
    ("modifiers", "width"),
    [(".E.U8", 1), (".E.S16", 2), (".E", 4), (".E.64", 8), (".E.EF.128", 16), (".E.ENL2.256", 32)],
)
def test_access_width(modifiers: str, width: int):
    assert access_bytes(modifiers) == width


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


def code(loads: dict[str, int], percent: float = 50.0) -> MachineCode:
    (sass,) = count_instructions("", [0])
    return MachineCode(
        code_bytes=1024,
        static_shared_bytes=0,
        barriers=0,
        occupancy=Occupancy(blocks=32, warps=32, percent=percent, limited_by="registers"),
        sass=sass.model_copy(update={"global_load_bytes": loads}),
    )


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
    found = list(check_variant(plan.kernels["scale"], build, record(**changes), code(loads)))
    assert found == problems


def test_occupancy_below_its_budget(scale_build):
    plan, build = scale_build
    build = build.model_copy(update={"limits": {"occupancy_percent": 50}})
    kernel = plan.kernels["scale"]
    assert not list(check_variant(kernel, build, record(), code({"16": 2}, 50.0)))
    assert list(check_variant(kernel, build, record(), code({"16": 2}, 43.8))) == [
        "budget missed: occupancy = 43.8 %, limited by registers; allowed: at least 50 %"
    ]


def test_real_cubins_show_what_their_specs_claim(toy_build: BuildResult, shared_cache):
    work = toy_build.out / ".work"
    reports = read_reports([work / "sm90.json", work / "sm100.json"])
    assert {report.arch: len(report.blobs) for report in reports.values()} == {
        "sm90": 6,
        "sm100": 5,
    }
    wide = reports["sm90"].records["scale__fp16_256_long"]
    machine_code = reports["sm90"].machine_code["scale__fp16_256_long"]
    assert machine_code.sass.global_load_bytes == {"16": 2}
    assert machine_code.sass.instructions * 16 <= machine_code.code_bytes
    cubin = CubinCache(shared_cache).cubin(wide.cubin_sha256)
    assert len(text_section(cubin)) % 128 == 0
    assert wide.elf_abi == elf_abi(cubin) == "51/7"
    assert machine_code.code_bytes == len(text_section(cubin))
    assert named_barriers(cubin) == machine_code.barriers
    assert wide.entry == "scale_kernel"
