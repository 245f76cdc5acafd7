"""Kernels in CUDA C++: what the specs may say of them, and that they compile like Triton's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from aot_build.build import build
from aot_build.errors import BuildError, SpecError
from aot_build.loader import load_kernel
from aot_build.pack import read_reports
from aot_build.planner import make_plan
from tests.unit.aot_build.toy_specs import ARCHS, TOY, edit

KERNEL = """\
#include "common/rounding.cuh"

constexpr int kFactor = FACTOR;
constexpr int kWarps = NUM_WARPS;

extern "C" __global__ void __launch_bounds__(kWarps * 32)
    multiply(float* data, int count, void*, void*) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) data[at] = rounded(data[at] * kFactor);
}
"""
ROUNDING = "__device__ inline float rounded(float value) { return rintf(value); }\n"
SPEC = """\
schema_version = 1
[kernel]
name = "multiply"
function = "multiply"
summary = "Multiply by a constant."
archs = ["sm90", "sm100"]
[axes]
factor = { values = [2, 3], doc = "the constant" }
[[params]]
name = "data"
type = "*fp32"
doc = "[count]"
[[params]]
name = "count"
type = "i32"
doc = "elements"
[tuning]
[[tuning.rules]]
when = {}
set = { num_warps = 4, num_stages = 1, maxnreg = 0 }
[[budgets]]
when = {}
set = { registers = 32, spill_bytes = 0 }
"""


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """A folder of specs with a kernel of either language."""
    folder = tmp_path / "specs"
    (folder / "multiply").mkdir(parents=True)
    (folder / "multiply" / "kernel.cu").write_text(KERNEL)
    (folder / "multiply" / "spec.toml").write_text(SPEC)
    shutil.copytree(TOY / "common", folder / "common")
    (folder / "common" / "rounding.cuh").write_text(ROUNDING)
    shutil.copytree(TOY / "fill", folder / "fill")
    return folder


def make(specs: Path, cache: Path, out: Path) -> dict[str, dict[str, Any]]:
    """Build, and the manifest's entries of the kernel on sm90."""
    build(specs, "full", ARCHS, out, cache=cache, console=Console(quiet=True))
    manifest = json.loads((out / "manifest.json").read_bytes())
    assert manifest["kernels"]["fill"]["language"] == "triton"
    assert manifest["kernels"]["multiply"]["language"] == "cuda"
    assert manifest["toolchain"]["nvrtc"].startswith("12.")
    entries = manifest["kernels"]["multiply"]["variants"]
    return {entry["name"]: entry for entry in entries if entry["arch"] == "sm90"}


def test_it_builds_beside_triton_s(specs: Path, shared_cache: Path, tmp_path: Path) -> None:
    variants = make(specs, shared_cache, tmp_path / "out")
    assert list(variants) == ["multiply__2", "multiply__3"]
    two, three = variants.values()
    assert two["entry"] == "multiply"
    assert two["num_warps"] == 4
    assert two["spill_bytes"] == 0
    # data, count and the two appended pointers.
    report = read_reports([tmp_path / "out" / ".work" / "sm90.json"])["sm90"]
    params = report.records["multiply__2"].params
    assert [param.offset for param in params] == [0, 8, 16, 24]
    assert two["cubin_sha256"] != three["cubin_sha256"]


def test_what_it_includes_is_part_of_its_key(
    specs: Path, shared_cache: Path, tmp_path: Path
) -> None:
    before = make(specs, shared_cache, tmp_path / "out")
    edit(specs / "common" / "rounding.cuh", "rintf", "floorf")
    after = make(specs, shared_cache, tmp_path / "out")
    assert before["multiply__2"]["cubin_sha256"] != after["multiply__2"]["cubin_sha256"]


def test_an_error_of_the_compiler_names_the_variants(
    specs: Path, shared_cache: Path, tmp_path: Path
) -> None:
    edit(specs / "multiply" / "kernel.cu", "rounded(", "rounded_up(")
    with pytest.raises(BuildError, match=r'multiply__2, multiply__3 on sm90: (.|\n)*"rounded_up"'):
        make(specs, shared_cache, tmp_path / "out")


def test_a_pointer_too_few_is_seen_before_anything_compiles(specs: Path) -> None:
    edit(specs / "multiply" / "kernel.cu", ", void*, void*", ", void*")
    with pytest.raises(SpecError, match=r"last two parameters must be unnamed void\*"):
        make_plan(specs, "full", ARCHS)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("kernel.cu", "multiply(", "times(", 'no extern "C" __global__ function'),
        ("kernel.cu", "float* data, int", "float* data, int size, int", "size of multiply is not"),
        ("kernel.cu", "= FACTOR", "= 2", "changes nothing"),
        ("kernel.cu", "common/rounding.cuh", "rounding.cuh", "files of one folder only"),
        ("spec.toml", "values = [2, 3]", 'values = ["two"]', "a constant of kernel.cu"),
        ("spec.toml", 'doc = "elements"', 'doc = ""\ndivisible_by = [{ value = 4 }]', "by Triton"),
    ],
)
def test_mistakes(specs: Path, file: str, old: str, new: str, message: str) -> None:
    edit(specs / "multiply" / file, old, new)
    with pytest.raises(SpecError) as error:
        make_plan(specs, "full", ARCHS)
    assert message in str(error.value)


def test_one_source_only(specs: Path) -> None:
    (specs / "multiply" / "kernel.py").write_text("")
    with pytest.raises(SpecError, match=r"beside kernel\.py: one must go"):
        make_plan(specs, "full", ARCHS)


def test_python_cannot_import_it(specs: Path) -> None:
    with pytest.raises(BuildError, match=r"cannot import a kernel in CUDA C\+\+"):
        load_kernel(specs, "multiply")
