"""What the host's stand-ins cannot show of work stealing: the instructions that ptxas makes of it for sm100."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aot_build.cuda_compiler import CudaCompiler
from aot_build.jobs import make_batches
from aot_build.planner import make_plan
from aot_build.toolchain import run_tool
from tests.simt.host_kernel import SPECS

# An instruction's name with its modifiers, behind its address and perhaps a predicate.
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


@pytest.fixture(scope="module")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The instructions of a variant, in order."""
    folder: Path = tmp_path_factory.mktemp("cubin")
    plan = make_plan(SPECS, "ci", ["sm100"])
    batch = next(b for b in make_batches(plan) if b.kernel == "forward_work_stealing")
    job = next(job for job in batch.jobs if job.variant.endswith("_d64_i64"))
    _, cubin = CudaCompiler(batch, SPECS, folder).compile(job)
    (folder / "kernel.cubin").write_bytes(cubin)
    found = INSTRUCTION.findall(run_tool("nvdisasm", "-c", folder / "kernel.cubin"))
    assert len(found) > 100
    return found


def places(instructions: list[str], pattern: str) -> list[int]:
    """Where instructions of a kind are."""
    return [i for i, name in enumerate(instructions) if re.fullmatch(pattern, name)]


def test_one_lane_asks_the_hardware_behind_a_barrier_and_a_fence(instructions: list[str]) -> None:
    (ask,) = places(instructions, r"UGETNEXTWORKID.*")
    before = instructions[:ask]
    barrier = places(before, r"BAR\.SYNC.*")[-1]
    # The fence between reads of the last answer and the write of the next one, and what is expected, lie between.
    for pattern in (r"ELECT", r"FENCE\.VIEW\.ASYNC.*", r"SYNCS\.ARRIVE\.TRANS64.*"):
        assert places(before, pattern)[-1] > barrier, pattern


def test_the_answer_is_read_behind_the_wait_for_it(instructions: list[str]) -> None:
    waits = places(instructions, r"SYNCS\.PHASECHK\.TRANS64.*")
    (read,) = places(instructions, r"LDS\.128")
    assert places(instructions, r"UGETNEXTWORKID.*")[0] < waits[0] < read


def test_lookups_that_can_be_under_way_together_are(instructions: list[str]) -> None:
    rows = places(instructions, r"LDG\.E\.128.*")
    assert len(rows) == 4
    # No index, which the next row would have to wait for.
    assert not places(instructions[rows[0] : rows[-1]], r"LDG\.E(\.64)?")
