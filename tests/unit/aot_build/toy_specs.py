"""A toy folder of specs, two tiny kernels, that the build is tested on."""

from __future__ import annotations

import shutil
from pathlib import Path

TOY = Path(__file__).parent / "toy"
GOLDEN = Path(__file__).parent / "golden"
REPOSITORY = Path(__file__).parents[3]
ARCHS = ["sm90", "sm100"]


def copy_toy(folder: Path) -> Path:
    """A copy of the toy specs to break."""
    shutil.copytree(TOY, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def edit(path: Path, old: str, new: str) -> None:
    """Replace text that must be there."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
