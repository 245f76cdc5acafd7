"""The wheel: what is in it, what it asks for, and that it works where nothing can be compiled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.wheel.conftest import ROOT
from wheels import clean_env, repair

# The first fixture builds a wheel and installs torch.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def dynamic(library: Path, tag: str) -> list[str]:
    """The strings of one kind in a library's dynamic section."""
    with library.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        return [getattr(entry, tag.removeprefix("DT_").lower()) for entry in section.iter_tags(tag)]


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_holds_the_native_parts_the_packs_and_no_build_tool(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    package = {name.removeprefix("tbe_aot/") for name in names if name.startswith("tbe_aot/")}
    assert {
        "__init__.py",
        "_operator_rules.py",
        "py.typed",
        "lib/libtbe_aot.so",
        "lib/manifest.json",
        "lib/sm90.pack",
        "lib/sm100.pack",
    } <= package
    assert len([name for name in package if re.fullmatch(r"_launcher\..*\.so", name)]) == 1
    tops = {name.partition("/")[0] for name in names}
    assert tops == {
        "tbe_aot",
        "tbe_aot_audit",
        next(top for top in tops if top.endswith(".dist-info")),
    }


def test_metadata_asks_for_torch_from_2_10_and_never_for_triton(unpacked: Path):
    (path,) = unpacked.glob("*.dist-info/METADATA")
    metadata = Parser().parsestr(path.read_text())
    requirements = metadata.get_all("Requires-Dist") or []
    assert "torch>=2.10" in requirements
    assert not [line for line in requirements if re.match("triton|nvidia|cuda", line)]
    assert metadata["License-Expression"] == "BSD-3-Clause"


def test_has_a_manylinux_tag_and_carries_no_library_of_torch_or_cuda(wheel: Path):
    assert "manylinux_2_" in wheel.name
    command = ["auditwheel", "show", str(wheel)]
    shown = subprocess.run(
        command, env=repair.environment(), capture_output=True, text=True, check=True
    ).stdout
    assert 'constrains the platform tag to "manylinux_2_' in " ".join(shown.split())
    with zipfile.ZipFile(wheel) as archive:
        libraries = {Path(name).name for name in archive.namelist() if ".so" in name}
    assert libraries == {"libtbe_aot.so", next(x for x in libraries if x.startswith("_launcher."))}


def test_library_needs_neither_cuda_nor_python(unpacked: Path):
    needed = dynamic(unpacked / "tbe_aot/lib/libtbe_aot.so", "DT_NEEDED")
    assert "libtorch.so" in needed
    assert not [name for name in needed if re.match("libcuda|libpython|libc10_cuda", name)]


def test_module_finds_the_library_beside_itself(unpacked: Path):
    (module,) = unpacked.glob("tbe_aot/_launcher.*.so")
    assert "libtbe_aot.so" in dynamic(module, "DT_NEEDED")
    assert (dynamic(module, "DT_RUNPATH") or dynamic(module, "DT_RPATH")) == ["$ORIGIN/lib"]


def test_no_file_tells_where_it_was_built(unpacked: Path):
    telling = [
        path.relative_to(unpacked)
        for path in unpacked.rglob("*")
        if path.is_file() and str(ROOT).encode() in path.read_bytes()
    ]
    assert not telling


def test_looks_up_rows_where_triton_cannot_be_imported(installed: Path):
    checked = clean_env.run(installed, ["python", str(ROOT / "wheels" / "check_installed.py")])
    assert checked.returncode == 0, checked.stdout


def test_triton_really_cannot_be_imported_there(installed: Path):
    tried = clean_env.run(installed, ["python", "-c", "import triton"])
    assert tried.returncode != 0
    assert "triton is hidden" in tried.stdout


def test_command_runs(installed: Path):
    shown = clean_env.run(installed, ["tbe-aot", "--help"])
    assert shown.returncode == 0, shown.stdout


def test_demo_runs(installed: Path):
    demo = ["python", "-m", "examples.dlrm_v2.demo", "--rows", "1000"]
    demo += ["--batch", "64", "--train-batch", "64"]
    shown = clean_env.run(installed, demo)
    assert shown.returncode == 0, shown.stdout


def test_torch_that_is_too_old_or_absent_is_said_so(tmp_path: Path):
    (tmp_path / "version.py").write_text("__version__ = '2.9.1'\n")
    old = setup({"TBE_AOT_TORCH": str(tmp_path)})
    assert "2.10 or newer is needed" in old
    absent = setup({"TBE_AOT_TORCH": str(tmp_path / "nowhere")})
    assert "is no torch package" in absent


@pytest.mark.parametrize("jobs", ["abc", "0", "-2", "1.5"])
def test_a_number_of_jobs_that_is_none_is_said_so(jobs: str):
    said = setup({"TBE_AOT_JOBS": jobs})
    assert said.endswith(f"tbe-aot: TBE_AOT_JOBS is '{jobs}', expected a whole number from 1 on\n")


def test_build_without_torch_points_to_no_build_isolation(tmp_path: Path):
    # An isolated build's path: what pip put there, and no torch.
    script = (
        "import sys, runpy; sys.modules['torch'] = None;"
        "sys.argv = ['setup.py', 'build_ext', '--build-lib', sys.argv[1]];"
        "import importlib.util as u; find = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a);"
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "--no-build-isolation" in done.stderr


def test_artifacts_that_were_changed_are_refused(artifacts: Path, tmp_path: Path):
    for file in (*artifacts.glob("*.pack"), artifacts / "manifest.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "checksums.json").write_bytes((artifacts / "checksums.json").read_bytes())
    pack = bytearray((tmp_path / "sm90.pack").read_bytes())
    pack[-1] ^= 1
    (tmp_path / "sm90.pack").write_bytes(pack)
    assert "sm90.pack" in setup({"TBE_AOT_ARTIFACTS": str(tmp_path)})


def setup(environment: dict[str, str]) -> str:
    """Run setup.py's build, which must fail, and return what it says."""
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-lib", "build/test-wheel/refused"],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def test_manifest_says_what_the_packs_hold(unpacked: Path):
    lib = unpacked / "tbe_aot" / "lib"
    manifest = json.loads((lib / "manifest.json").read_text())
    assert manifest["profile"] == "ci"
    assert sorted(manifest["archs"]) == ["sm100", "sm90"]
    for arch in manifest["archs"].values():
        assert (lib / arch["pack"]).stat().st_size == arch["file_size"]
