"""The native build: what it puts out, when it does nothing, and what it says when it cannot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aot_build import native
from aot_build.errors import BuildError
from tests.launcher.support import BUILD_DIR, ROOT, Built

EXPORTED = "tbe_aot_"


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_package_is_laid_out_as_in_the_wheel(built: Built) -> None:
    files = {
        str(path.relative_to(built.package)) for path in built.package.rglob("*") if path.is_file()
    }
    module = next(name for name in files if name.startswith("_launcher."))
    lib = {f"lib/{name}" for name in ("libtbe_aot.so", "sm90.pack", "sm100.pack", "manifest.json")}
    assert files == {module, *lib}


def test_nothing_changed_nothing_done(built: Built) -> None:
    before = _times(BUILD_DIR / "native")
    native.build(BUILD_DIR / "artifacts", BUILD_DIR / "native", torch=None)
    after = _times(BUILD_DIR / "native")
    # Ninja may rewrite its own logs.
    assert {p for p in after if after[p] != before.get(p)} <= {
        p for p in after if p.name.startswith(".ninja")
    }


def test_library_exports_its_c_interface_alone(built: Built) -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", built.package / "lib" / native.LIBRARY],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = [line.split()[-1] for line in listed.splitlines()]
    assert names
    assert all(name.startswith(EXPORTED) for name in names)


def test_binaries_hold_no_path_of_the_build(built: Built) -> None:
    for path in [*built.package.glob("*.so"), built.package / "lib" / native.LIBRARY]:
        data = path.read_bytes()
        for folder in (ROOT, Path(sys.prefix), BUILD_DIR):
            assert str(folder).encode() not in data, path


def test_no_library_of_cuda_or_torch_is_linked(built: Built) -> None:
    for path in [*built.package.glob("*.so"), built.package / "lib" / native.LIBRARY]:
        listed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True)
        needed = [line for line in listed.stdout.splitlines() if "NEEDED" in line]
        assert not [
            line for line in needed if "cuda" in line or "torch" in line or "python" in line
        ]


def test_artifacts_that_are_not_finished(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="not a finished artifact folder"):
        native.build(tmp_path, tmp_path / "native", torch=None)


def test_torch_without_stable_abi(tmp_path: Path) -> None:
    with pytest.raises(
        BuildError, match=r"no torch package with the stable ABI's headers \(torch >= 2.10\)"
    ):
        native.build(BUILD_DIR / "artifacts", tmp_path / "native", torch=tmp_path)


def test_python_that_cannot_be_asked(built: Built, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cannot be asked about its headers"):
        native.build(BUILD_DIR / "artifacts", tmp_path, torch=None, python=tmp_path / "python")


def test_compiler_errors_are_shown(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = tmp_path / "artifacts"
    shutil.copytree(BUILD_DIR / "artifacts", artifacts)
    (artifacts / "generated" / "broken.cpp").write_text("int broken = nonsense;\n")
    # Only the generated source: the handwritten ones compile elsewhere.
    monkeypatch.setattr(native, "SOURCE_DIR", tmp_path)
    with pytest.raises(BuildError, match="nonsense"):
        native.build(artifacts, tmp_path / "native", torch=None)
