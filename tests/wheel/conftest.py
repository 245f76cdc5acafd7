"""One wheel and one clean environment for all the tests here; both are kept between runs and renewed when stale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from wheels import clean_env, repair

ROOT = Path(__file__).resolve().parents[2]
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
ARTIFACTS = ROOT / "build" / "artifacts" / "ci"


def build_kernels(root: Path, out: Path, environment: dict[str, str]) -> None:
    """Run aot_build in a source tree: the ci profile, both archs."""
    command = [sys.executable, "-m", "aot_build", "build", "--specs", "kernel_specs"]
    command += ["--profile", "ci", "--archs", "sm90,sm100", "--out", str(out)]
    subprocess.run(command, cwd=root, env=os.environ | environment, check=True)


def pip_wheel(root: Path, folder: Path, environment: dict[str, str], umask: int = 0o022) -> Path:
    """Build a source tree's wheel as a packager does who sets nothing that is not in ``environment``."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", str(root), "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder)]
    inherited = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    subprocess.run(command, env=inherited | environment, umask=umask, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_sdist(root: Path, folder: Path) -> Path:
    """Build a source tree's sdist, and unpack it.

    Returns:
        The unpacked folder.
    """
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(folder)]
    subprocess.run(command, cwd=root, check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="session")
def artifacts() -> Path:
    build_kernels(ROOT, ARTIFACTS, {})
    return ARTIFACTS


@pytest.fixture(scope="session")
def built_wheel(artifacts: Path) -> Path:
    folder = ROOT / "build" / "test-wheel" / "built"
    return pip_wheel(ROOT, folder, {"TBE_AOT_ARTIFACTS": str(artifacts)})


@pytest.fixture(scope="session")
def wheel(built_wheel: Path) -> Path:
    folder = ROOT / "build" / "test-wheel" / "repaired"
    shutil.rmtree(folder, ignore_errors=True)
    return repair.repair(built_wheel, folder)


@pytest.fixture(scope="session")
def installed(wheel: Path) -> Path:
    """A clean environment with the wheel, and the version of torch that the tests themselves run under."""
    folder = ROOT / "build" / "clean" / TAG
    clean_env.make(folder, wheel, f"torch=={version('torch').partition('+')[0]}")
    return folder
