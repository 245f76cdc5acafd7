"""Generated C++: golden files, and the compiled table agrees with the manifest, entry by entry."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aot_build.build import BuildResult
from aot_build.emit import CPP_KEYWORDS, camel_case, emit, enumerator
from aot_build.manifest import make_manifest
from aot_build.pack import PackReport
from aot_build.planner import make_plan
from tests.unit.aot_build.toy_specs import ARCHS, GOLDEN, REPOSITORY

CORE = REPOSITORY / "csrc_launcher" / "core"
COMPILER = ("g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{CORE}")
DUMP = Path(__file__).parent / "dump_table.cpp"


@pytest.mark.parametrize(
    "name", ["manifest.json", "generated/tbe_aot_generated.h", "generated/tbe_aot_generated.cpp"]
)
def test_golden(toy_build: BuildResult, name: str):
    """Byte by byte, cubin hashes included: Triton is pinned, and its output depends on nothing else.

    After a wanted change run ``UPDATE_GOLDEN=1 pytest tests/unit/aot_build`` and read the difference.
    """
    made = (toy_build.out / name).read_text()
    golden = GOLDEN / Path(name).name
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(made)
    assert made == golden.read_text()


@pytest.mark.parametrize(
    ("axis", "label", "name"),
    [
        ("index_width", "32", "i32"),
        ("shape", "short", "short_"),
        ("weighted", "true", "true_"),
        ("dtype", "fp16", "fp16"),
    ],
)
def test_enumerator(axis: str, label: str, name: str):
    assert enumerator(axis, label) == name


def test_names():
    assert camel_case("check_offsets") == "CheckOffsets"
    assert "short" in CPP_KEYWORDS


def compile_and_dump(generated: Path, tmp_path: Path) -> dict[str, Any]:
    """What a C++ program sees in the table."""
    program = tmp_path / "dump"
    subprocess.run(
        [
            *(*COMPILER, f"-I{generated}", str(DUMP)),
            *(str(generated / "tbe_aot_generated.cpp"), "-o", str(program)),
        ],
        check=True,
    )
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    table: dict[str, Any] = json.loads(done.stdout)
    return table


def table_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """What the table must be by the manifest."""
    archs = list(manifest["archs"])
    kernels = []
    for name, kernel in manifest["kernels"].items():
        variants: dict[str, list[dict[str, Any]] | None] = {}
        for arch in archs:
            entries = [variant for variant in kernel["variants"] if variant["arch"] == arch]
            variants[arch] = [
                {
                    "name": variant["name"],
                    "entry": variant.get("entry", kernel["function"]),
                    "blob": variant["blob"],
                    "num_warps": variant["num_warps"],
                    "shared_bytes": variant.get("shared_bytes", 0),
                    "constants": [variant["constants"][key] for key in kernel["constants"]],
                }
                for variant in entries
            ] or None
        kernels.append(
            {
                "name": name,
                "axes": [{"name": a["name"], "labels": a["labels"]} for a in kernel["axes"]],
                "params": [
                    {key: param[key] for key in ("name", "type", "offset", "size")}
                    for param in kernel["params"]
                ],
                "args_size": kernel["args_size"],
                "constants": kernel["constants"],
                "cells": kernel["cells"],
                "variants": variants,
            }
        )
    return {
        "profile": manifest["profile"],
        "build_id": manifest["build_id"],
        "archs": {
            name: {"pack": entry["pack"], "index_sha256": entry["index_sha256"]}
            for name, entry in manifest["archs"].items()
        },
        "kernels": kernels,
    }


def test_manifest_and_table_agree(toy_build: BuildResult, tmp_path: Path):
    manifest = json.loads((toy_build.out / "manifest.json").read_bytes())
    # JSON objects are stored sorted; the table has the order of the plan.
    manifest["archs"] = {arch: manifest["archs"][arch] for arch in ARCHS}
    assert compile_and_dump(toy_build.out / "generated", tmp_path) == table_of(manifest)


def test_manifest_and_table_of_the_projects_kernels_agree(tmp_path: Path):
    """Without compiling a kernel: every variant is one that this build leaves out."""
    plan = make_plan(REPOSITORY / "kernel_specs", "full", ARCHS)
    packs = {
        arch: PackReport(
            arch=arch,
            file=f"{arch}.pack",
            sha256="0" * 64,
            index_sha256="ab" * 32,
            size=40,
            blobs=[],
            records={},
            machine_code={},
        )
        for arch in ARCHS
    }
    manifest = make_manifest(plan, packs)
    emit(plan, packs, manifest["build_id"], tmp_path)
    assert compile_and_dump(tmp_path, tmp_path) == table_of(manifest)


CELLS = """\
#include <cstdio>
#include <initializer_list>

#include "tbe_aot_generated.h"

using namespace tbe_aot::generated;

int main() {
  for (auto dtype : {ScaleDtype::fp32, ScaleDtype::fp16})
    for (auto size : {ScaleSize::s64, ScaleSize::s256})
      for (auto shape : {ScaleShape::short_, ScaleShape::long_})
        std::printf("%d ", scale_cell({dtype, size, shape}));
  std::printf("%d ", fill_cell({}));
  static_assert(kFillKernel == 0 && kScaleKernel == 1);
  static_assert(kScaleSizeValues[1] == 256);
  ScaleArgs args{};
  args.negate = true;
  args.numel = int64_t{1} << 40;
  std::printf("%d %lld ", args.negate, static_cast<long long>(args.numel >> 40));
  const int32_t constants[] = {7, 8};
  const ScaleConstants read = scale_constants({"", "", 0, 1, 0, constants});
  std::printf("%d %d\\n", read.UNROLL, read.SHORT_BELOW);
}
"""


def test_cells_are_computed_from_axes(toy_build: BuildResult, tmp_path: Path):
    source = tmp_path / "cells.cpp"
    source.write_text(CELLS)
    program = tmp_path / "cells"
    subprocess.run(
        [*COMPILER, f"-I{toy_build.out / 'generated'}", str(source), "-o", str(program)],
        check=True,
    )
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert done.stdout == "0 1 2 3 4 5 6 7 0 1 1 7 8\n"


def test_an_argument_of_the_wrong_type_does_not_compile(toy_build: BuildResult, tmp_path: Path):
    source = tmp_path / "wrong.cpp"
    source.write_text(
        '#include "tbe_aot_generated.h"\n'
        "void f(tbe_aot::generated::ScaleArgs& args, const float* p) { args.numel = p; }\n"
    )
    done = subprocess.run(
        [*COMPILER, f"-I{toy_build.out / 'generated'}", "-fsyntax-only", str(source)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "args.numel" in done.stderr or "numel = p" in done.stderr
