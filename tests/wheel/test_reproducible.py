"""The same sources give the same bytes, wherever and whenever they are built."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.wheel.conftest import ROOT, build_kernels, pip_wheel
from wheels import repair

# A build from nothing, without the cubin cache of the tree.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SOURCES = (
    "setup.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "licenses",
    "MANIFEST.in",
    "aot_build",
    "csrc_launcher",
    "kernel_specs",
    "python",
    "wheels",
)
GENERATED = shutil.ignore_patterns("__pycache__", "*.egg-info", "lib", "*.so", "_operator_rules.py")


@pytest.fixture(scope="module")
def other_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources in a folder with another name and depth."""
    tree = tmp_path_factory.mktemp("elsewhere") / "a" / "copy"
    tree.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=GENERATED)
        else:
            shutil.copy(source, tree / name)
    return tree


@pytest.fixture(scope="module")
def other_artifacts(other_tree: Path) -> Path:
    out = other_tree / "build" / "artifacts" / "ci"
    build_kernels(other_tree, out, {"TBE_AOT_CACHE": str(other_tree / "build" / "cache")})
    return out


@pytest.mark.parametrize("name", ["sm90.pack", "sm100.pack", "manifest.json", "plan.json"])
def test_two_folders_give_identical_artifacts(artifacts: Path, other_artifacts: Path, name: str):
    assert (other_artifacts / name).read_bytes() == (artifacts / name).read_bytes()


def test_two_folders_give_identical_generated_code(artifacts: Path, other_artifacts: Path):
    first = {file.name: file.read_bytes() for file in (artifacts / "generated").iterdir()}
    second = {file.name: file.read_bytes() for file in (other_artifacts / "generated").iterdir()}
    assert first == second


def test_two_folders_give_identical_wheels(
    built_wheel: Path, other_tree: Path, other_artifacts: Path, tmp_path: Path
):
    other = pip_wheel(other_tree, tmp_path, {"TBE_AOT_ARTIFACTS": str(other_artifacts)})
    assert other.read_bytes() == built_wheel.read_bytes()


def test_repaired_wheels_are_identical(
    built_wheel: Path,
    other_tree: Path,
    other_artifacts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    other = pip_wheel(other_tree, tmp_path / "built", {"TBE_AOT_ARTIFACTS": str(other_artifacts)})
    first = repair.repair(built_wheel, tmp_path / "first")
    second = repair.repair(other, tmp_path / "second")
    assert first.read_bytes() == second.read_bytes()
