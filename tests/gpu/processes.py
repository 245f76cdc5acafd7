"""Programs of this folder in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tbe_aot

ROOT = Path(__file__).resolve().parents[2]


def start_program(
    name: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``tests.gpu.<name>`` against the same tbe_aot as this process, however it ends."""
    packages = Path(tbe_aot.__file__).resolve().parents[1]
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", f"tests.gpu.{name}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def run_program(name: str, *arguments: str, **environment: str) -> str:
    """What the program printed, or an AssertionError when it failed."""
    done = start_program(name, *arguments, **environment)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
