"""Build the pure wheel of tbe_aot_audit: the package beside its own pyproject.toml, in a folder of its own.

python -m wheels.audit_wheel FOLDER
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from wheels.provenance import WHEEL_TIME

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "tbe_aot_audit"


def build(folder: Path) -> Path:
    """Build the wheel.

    Args:
        folder: where it goes; made if need be, and rid of an older one.

    Returns:
        The wheel.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{PACKAGE}-*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="tbe-aot-audit-") as place:
        tree = Path(place)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "python" / PACKAGE, tree / PACKAGE, ignore=ignored)
        for file in (*(ROOT / "wheels" / "audit").iterdir(), ROOT / "LICENSE"):
            shutil.copy(file, tree / file.name)
        # The wheel shows permissions; those of a checkout depend on its umask.
        for path in tree.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        command += ["--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(tree)]
        dated = {"SOURCE_DATE_EPOCH": str(WHEEL_TIME)} | os.environ
        subprocess.run(command, env=dated, umask=0o022, check=True)
    (wheel,) = folder.glob(f"{PACKAGE}-*.whl")
    return wheel


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    print(build(parser.parse_args().folder))
