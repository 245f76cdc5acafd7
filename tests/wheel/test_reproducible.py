"""The same sources give the same bytes, wherever and whenever they are built, and whoever builds sets nothing for it.

Once from this tree, and once from its sdist: unpacked in another folder, with other times of its files, another umask and another time zone.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.wheel.conftest import ROOT, build_kernels, make_sdist, pip_wheel
from wheels import audit_wheel, provenance, repair

# A build from nothing, without the cubin cache of the tree.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# As far from this machine's as can be; both are written into an archive by those who take no care.
ELSEWHERE = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C"}
UMASK = 0o077
LONG_AGO = 978_307_200


def times(wheel: Path) -> set[str]:
    """Of a wheel's files, as dates."""
    with zipfile.ZipFile(wheel) as archive:
        return {"{}-{:02}-{:02}".format(*entry.date_time) for entry in archive.infolist()}


def record(wheel: Path) -> dict[str, dict[str, str]]:
    """A wheel's build record."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/" + provenance.RECORD_FILE))
        found: dict[str, dict[str, str]] = json.loads(archive.read(name))
    return found


@pytest.fixture(scope="module")
def other_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist, in a folder with another name and depth."""
    folder = tmp_path_factory.mktemp("elsewhere") / "a" / "copy"
    folder.mkdir(parents=True)
    tree = make_sdist(ROOT, folder)
    for path in tree.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
        path.chmod(path.stat().st_mode & ~UMASK)
    return tree


@pytest.fixture(scope="module")
def other_artifacts(other_tree: Path) -> Path:
    out = other_tree / "build" / "artifacts" / "ci"
    cache = {"TBE_AOT_CACHE": str(other_tree / "build" / "cache")}
    build_kernels(other_tree, out, ELSEWHERE | cache)
    return out


@pytest.fixture(scope="module")
def other_wheel(built_wheel: Path, other_tree: Path, other_artifacts: Path, tmp_path_factory):
    # An archive counts its files' time in steps of two seconds.
    time.sleep(max(0.0, built_wheel.stat().st_mtime + 3 - time.time()))
    folder = tmp_path_factory.mktemp("wheel")
    environment = ELSEWHERE | {"TBE_AOT_ARTIFACTS": str(other_artifacts)}
    return pip_wheel(other_tree, folder, environment, umask=UMASK)


@pytest.mark.parametrize("name", ["sm90.pack", "sm100.pack", "manifest.json", "plan.json"])
def test_checkout_and_sdist_give_identical_artifacts(
    artifacts: Path, other_artifacts: Path, name: str
):
    assert (other_artifacts / name).read_bytes() == (artifacts / name).read_bytes()


def test_checkout_and_sdist_give_identical_generated_code(artifacts: Path, other_artifacts: Path):
    first = {file.name: file.read_bytes() for file in (artifacts / "generated").iterdir()}
    second = {file.name: file.read_bytes() for file in (other_artifacts / "generated").iterdir()}
    assert first == second


def test_checkout_and_sdist_give_identical_wheels(built_wheel: Path, other_wheel: Path):
    assert record(other_wheel)["source"] == record(built_wheel)["source"]
    assert other_wheel.read_bytes() == built_wheel.read_bytes()


def test_repaired_wheels_are_identical(
    built_wheel: Path, other_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    first = repair.repair(built_wheel, tmp_path / "first")
    monkeypatch.setenv("TZ", ELSEWHERE["TZ"])
    before = os.umask(UMASK)
    try:
        second = repair.repair(other_wheel, tmp_path / "second")
    finally:
        os.umask(before)
    assert first.read_bytes() == second.read_bytes()
    assert times(first) == times(built_wheel) == {"2026-01-01"}


def test_a_module_that_was_deleted_leaves_the_wheel(
    built_wheel: Path, artifacts: Path, tmp_path: Path
):
    (leftover,) = (ROOT / "build").glob(f"lib.*{sys.implementation.cache_tag}")
    (leftover / "tbe_aot" / "deleted.py").write_text("# of an earlier build\n")
    again = pip_wheel(ROOT, tmp_path, {"TBE_AOT_ARTIFACTS": str(artifacts)})
    assert again.read_bytes() == built_wheel.read_bytes()


def test_whoever_builds_may_name_another_time(artifacts: Path, tmp_path: Path):
    environment = {"TBE_AOT_ARTIFACTS": str(artifacts), "SOURCE_DATE_EPOCH": str(LONG_AGO)}
    wheel = pip_wheel(ROOT, tmp_path / "built", environment)
    assert times(wheel) == {"2001-01-01"}
    assert times(repair.repair(wheel, tmp_path / "repaired")) == {"2001-01-01"}


def test_the_audit_alone_is_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    first = audit_wheel.build(tmp_path / "first")
    monkeypatch.setenv("TZ", ELSEWHERE["TZ"])
    before = os.umask(UMASK)
    try:
        second = audit_wheel.build(tmp_path / "second")
    finally:
        os.umask(before)
    assert first.read_bytes() == second.read_bytes()
    assert times(first) == {"2026-01-01"}
