"""The example of docs/specs.md, built and run as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.aot_build.toy_specs import REPOSITORY

PAGE = (REPOSITORY / "docs" / "specs.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's kernel_specs."""
    folder = tmp_path_factory.mktemp("docs")
    for _, text in BLOCKS:
        if named := re.match(r"# (\w+/[\w.]+)\n", text):
            path = folder / "kernel_specs" / named.group(1)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


def run(folder: Path, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True
    )


def test_commands(folder: Path):
    (commands,) = [text for language, text in BLOCKS if language == "sh"]
    for line in commands.splitlines():
        _, *arguments = shlex.split(line, comments=True)
        done = run(folder, [sys.executable, *arguments])
        assert done.returncode == 0, done.stderr
    header = (folder / "build/artifacts/ci/generated/tbe_aot_generated.h").read_text()
    for name in ("enum class RowNormsBucket", "d256,", "RowNormsArgs", "kRowNormsBucketValues"):
        assert name in header


def test_interpreted(folder: Path):
    (program,) = [text for _, text in BLOCKS if text.startswith("# run with")]
    done = run(folder, [sys.executable, "-c", program], TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr


def test_every_file_of_the_example_is_written(folder: Path):
    files = sorted(path.name for path in (folder / "kernel_specs").rglob("*") if path.is_file())
    assert [name for name in files if not name.endswith(".pyc")] == [
        "kernel.py",
        "rows.py",
        "spec.toml",
    ]
