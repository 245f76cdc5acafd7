"""Which commit a build record names: one whose sources these are, or one with a mark that they are not."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wheel.conftest import ROOT, make_sdist
from wheels import provenance

# Nothing of whoever runs the tests, such as a key that signs commits.
SETTINGS = {"GIT_CONFIG_GLOBAL": os.devnull} | {
    f"GIT_{who}_{what}": "somebody@example.org"
    for who in ("AUTHOR", "COMMITTER")
    for what in ("NAME", "EMAIL")
}


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(
        command, env=os.environ | SETTINGS, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The project's sources in a git repository of their own, committed."""
    folder = tmp_path / "checkout"
    names = [*provenance.SOURCES, ".gitignore", "wheels"]
    for name in dict.fromkeys(name.partition("/")[0] for name in names):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        folder.mkdir(exist_ok=True)
        copy(source, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "sources")
    return folder


@pytest.fixture
def unpacked(checkout: Path, tmp_path: Path) -> Path:
    """What an sdist of the clean checkout holds."""
    return make_sdist(checkout, tmp_path / "dist")


def append(folder: Path) -> None:
    with (folder / "README.md").open("a") as readme:
        readme.write("\nchanged\n")


def add(folder: Path) -> None:
    (folder / "python" / "tbe_aot" / "new.py").write_text("NEW = 1\n")


def delete(folder: Path) -> None:
    (folder / "python" / "tbe_aot" / "py.typed").unlink()


CHANGES = pytest.mark.parametrize("change", [append, add, delete])


def test_a_clean_checkout_is_its_commit(checkout: Path):
    assert provenance.revision(checkout) == git(checkout, "rev-parse", "HEAD")


@CHANGES
def test_a_changed_checkout_says_so(checkout: Path, change: Callable[[Path], None]):
    change(checkout)
    assert provenance.revision(checkout) == git(checkout, "rev-parse", "HEAD") + "-dirty"


def test_a_change_that_is_staged_says_so(checkout: Path):
    append(checkout)
    git(checkout, "add", ".")
    assert provenance.revision(checkout) == git(checkout, "rev-parse", "HEAD") + "-dirty"


def test_what_a_build_leaves_changes_nothing(checkout: Path):
    for name in ("build/x", "python/tbe_aot.egg-info/PKG-INFO", "python/tbe_aot/lib/sm90.pack"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("built\n")
    assert provenance.revision(checkout) == git(checkout, "rev-parse", "HEAD")


def test_an_sdist_carries_the_commit_and_all_sources(checkout: Path, unpacked: Path):
    assert provenance.revision(unpacked) == git(checkout, "rev-parse", "HEAD")
    assert provenance.source_hash(unpacked) == provenance.source_hash(checkout)


@CHANGES
def test_a_changed_sdist_says_so(checkout: Path, unpacked: Path, change: Callable[[Path], None]):
    change(unpacked)
    assert provenance.revision(unpacked) == git(checkout, "rev-parse", "HEAD") + "-dirty"


def test_an_sdist_of_a_changed_checkout_says_so_once(checkout: Path, tmp_path: Path):
    append(checkout)
    tree = make_sdist(checkout, tmp_path / "dist")
    dirty = git(checkout, "rev-parse", "HEAD") + "-dirty"
    assert provenance.revision(tree) == dirty
    append(tree)
    assert provenance.revision(tree) == dirty


def test_an_sdist_inside_of_another_checkout_is_asked_itself(checkout: Path, unpacked: Path):
    inside = checkout / "build" / "unpacked"
    shutil.copytree(unpacked, inside)
    append(checkout)
    assert provenance.revision(inside) == git(checkout, "rev-parse", "HEAD")


def test_a_copy_without_history_names_none(checkout: Path):
    shutil.rmtree(checkout / ".git")
    assert provenance.revision(checkout) is None


def test_a_silent_git_is_reported(checkout: Path, capsys: pytest.CaptureFixture[str]):
    shutil.rmtree(checkout / ".git")
    (checkout / ".git").write_text("gitdir: /nowhere\n")
    assert provenance.revision(checkout) is None
    assert "the build record names no commit" in capsys.readouterr().err


def test_nobody_names_another_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TBE_AOT_REVISION", "0123abcd")
    assert provenance.revision(checkout) == git(checkout, "rev-parse", "HEAD")
