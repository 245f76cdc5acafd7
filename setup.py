"""Builds the package: kernels (aot_build), then the native library and module, then the files that a wheel holds.

Metadata is in pyproject.toml; this file adds what setuptools cannot know. Environment:

TBE_AOT_PROFILE    ci or full (default): the part of the matrix that is compiled
TBE_AOT_ARCHS      GPU archs, default sm90,sm100
TBE_AOT_ARTIFACTS  a finished artifact folder (`make artifacts`), checked by hash: nothing is compiled for the GPU, triton is not needed
TBE_AOT_TORCH      an unpacked torch package to build against; default: the one that this interpreter would import
TBE_AOT_CACHE, TBE_AOT_JOBS    the cubin cache and the number of parallel jobs, read by aot_build
SOURCE_DATE_EPOCH  the time of the wheel's files; default: a constant (wheels/provenance.py)
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

if TYPE_CHECKING:
    from setuptools import Distribution

    from aot_build.native import NativeBuild

ROOT = Path(__file__).resolve().parent
# A PEP 517 frontend does not put the project's folder on the path.
sys.path.insert(0, str(ROOT))

# csrc_launcher's TORCH_TARGET_VERSION: older headers lack what it uses.
LEAST_TORCH = (2, 10)
RULES = "_operator_rules.py"


class BuildPackage(build_ext):
    """Makes `tbe_aot._launcher` and everything beside it that is not handwritten Python."""

    def run(self) -> None:
        """Build, then place the files in the build folder, or in python/ for an in-place or editable build."""
        jobs = parallel_jobs()
        torch = torch_folder()
        artifacts = kernels()
        built = native(artifacts, torch, jobs)
        package = ROOT / "python" / "tbe_aot" if self.inplace else Path(self.build_lib, "tbe_aot")
        place(artifacts, built, package)

    def get_outputs(self) -> list[str]:
        """The placed files, for setuptools' records."""
        package = Path(self.build_lib, "tbe_aot")
        placed = [*package.glob("_launcher*.so"), *package.glob("lib/*"), package / RULES]
        return sorted(map(str, placed))

    def get_output_mapping(self) -> dict[str, str]:
        """None: an editable build writes into python/ itself."""
        return {}


class Wheel(bdist_wheel):
    """Adds what a wheel says of its own making, and gives equal sources an equal wheel, whenever and wherever they are built."""

    def run(self) -> None:
        """Pack from nothing: what an earlier build left, such as a module that was deleted since, would be packed as well."""
        from wheels.provenance import WHEEL_TIME

        for folder in (self.get_finalized_command("build").build_lib, self.bdist_dir):
            shutil.rmtree(folder, ignore_errors=True)
        os.environ.setdefault("SOURCE_DATE_EPOCH", str(WHEEL_TIME))
        super().run()

    def write_wheelfile(self, wheelfile_base: str, *rest: str) -> None:
        """The last step before everything is packed: add the files, and give all of them permissions that no umask changes."""
        super().write_wheelfile(wheelfile_base, *rest)
        root = Path(self.bdist_dir)
        add_provenance(root, Path(wheelfile_base), self.distribution)
        for path in root.rglob("*"):
            path.chmod(0o755 if path.is_dir() or path.suffix == ".so" else 0o644)


class Sources(sdist):
    """Adds the commit: a wheel that is built from an sdist says the same of its making as one from the checkout."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Everything that is packed, in a folder."""
        from wheels.provenance import carry_revision, revision

        # Asked first, because git sees the folder.
        commit = revision()
        super().make_release_tree(base_dir, files)
        carry_revision(commit, Path(base_dir))


def add_provenance(root: Path, dist_info: Path, distribution: Distribution) -> None:
    """Write the build record and the bill of materials of an unpacked wheel."""
    from aot_build.native import COMPILE_FLAGS
    from wheels import provenance

    record = provenance.build_record(
        json.loads((root / "tbe_aot" / "lib" / "manifest.json").read_bytes()),
        wheel_version=str(distribution.get_version()),
        torch=version_of(torch_folder()),
        compiler=os.environ.get("CXX", "g++"),
        flags=COMPILE_FLAGS,
    )
    provenance.write(root, dist_info, record, distribution.install_requires or [])


def version_of(torch: Path) -> str:
    """The version of a torch package, without what was built for, such as +cpu: the headers are the same."""
    found = re.search(r"__version__ = '([^'+]+)", (torch / "version.py").read_text())
    return found[1] if found else "unknown"


def parallel_jobs() -> int | None:
    """``TBE_AOT_JOBS``, read before anything is built; None if it is not set."""
    from aot_build.build import jobs_from_environment
    from aot_build.errors import BuildError

    try:
        return jobs_from_environment()
    except BuildError as error:
        sys.exit(f"tbe-aot: {error}")


def torch_folder() -> Path:
    """The torch package to build against."""
    named = os.environ.get("TBE_AOT_TORCH")
    if named:
        folder = Path(named).absolute()
    else:
        found = importlib.util.find_spec("torch")
        if found is None or found.origin is None:
            sys.exit(
                "tbe-aot: this build environment has no torch. Install torch >= 2.10 and the group"
                " `build` of pyproject.toml, and build with `pip wheel . --no-build-isolation`; or"
                " name an unpacked torch package in TBE_AOT_TORCH."
            )
        folder = Path(found.origin).parent
    version_file = folder / "version.py"
    version = version_file.exists() and re.search(r"'(\d+)\.(\d+)", version_file.read_text())
    if not version:
        sys.exit(f"tbe-aot: {folder} is no torch package: it has no version.py with a version")
    if (int(version[1]), int(version[2])) < LEAST_TORCH:
        sys.exit(
            f"tbe-aot: torch in {folder} is {version[1]}.{version[2]}; 2.10 or newer is needed"
        )
    return folder


def kernels() -> Path:
    """The artifact folder: the named one after checking it, or one that is built now."""
    from aot_build.checksums import check_artifacts
    from aot_build.errors import BuildError

    named = os.environ.get("TBE_AOT_ARTIFACTS")
    profile = os.environ.get("TBE_AOT_PROFILE", "full")
    folder = Path(named).absolute() if named else ROOT / "build" / "artifacts" / profile
    if not named:
        archs = os.environ.get("TBE_AOT_ARCHS", "sm90,sm100")
        command = [sys.executable, "-m", "aot_build", "build", "--specs", "kernel_specs"]
        command += ["--profile", profile, "--archs", archs, "--out", str(folder)]
        # A process of its own: the assemblers are chosen before triton is imported.
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            sys.exit("tbe-aot: the kernels could not be built; the messages above say why")
    try:
        checked = check_artifacts(folder)
    except BuildError as error:
        sys.exit(f"tbe-aot: {error}")
    print(
        f"tbe-aot: {checked.variants} variants of profile {checked.profile} for"
        f" {', '.join(checked.archs)} in {checked.cubins} cubins, build {checked.build_id[:12]}"
    )
    return folder


def native(artifacts: Path, torch: Path, jobs: int | None) -> NativeBuild:
    """Compile the library and the module for this interpreter."""
    from aot_build import native as stage
    from aot_build.errors import BuildError

    tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    build_dir = ROOT / "build" / "native" / artifacts.name / tag
    try:
        return stage.build(artifacts, build_dir, torch, jobs=jobs)
    except BuildError as error:
        sys.exit(f"tbe-aot: {error}")


def place(artifacts: Path, built: NativeBuild, package: Path) -> None:
    """Copy into the package what was built, and remove what an earlier build left there."""
    lib = package / "lib"
    shutil.rmtree(lib, ignore_errors=True)
    lib.mkdir(parents=True)
    for old in package.glob("_launcher*.so"):
        old.unlink()
    copy(built.module, package)
    copy(built.library, lib)
    for file in (*sorted(artifacts.glob("*.pack")), artifacts / "manifest.json"):
        copy(file, lib)
    copy(artifacts / "generated" / RULES, package)


def copy(file: Path, folder: Path) -> None:
    """Copy with fixed permissions, so that the umask of a build does not show in its wheel."""
    target = folder / file.name
    shutil.copyfile(file, target)
    target.chmod(0o755 if file.suffix == ".so" else 0o644)


setup(
    ext_modules=[Extension("tbe_aot._launcher", sources=[])],
    cmdclass={"bdist_wheel": Wheel, "build_ext": BuildPackage, "sdist": Sources},
)
