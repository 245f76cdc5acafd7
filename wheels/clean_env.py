"""Make an environment as a user's: a venv that holds torch, the wheel and what the wheel requires; run commands in it.

    python wheels/clean_env.py FOLDER WHEEL [--torch REQUIREMENT] -- COMMAND...

COMMAND's first word is a program of the venv. It sees no compiler on PATH, cannot import triton (`no_triton/`) and lets no driver compile
PTX. The venv and torch are kept from call to call (a stamp names interpreter and torch); the wheel is installed anew each time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

_NO_TRITON = Path(__file__).resolve().parent / "no_triton"


def make(folder: Path, wheel: Path, torch: str) -> None:
    """Make or refresh the environment and install the wheel into it.

    Args:
        folder: where the venv is or shall be.
        wheel: the wheel to install.
        torch: pip's requirement for torch; installed once, before the wheel, so that the wheel's own requirement changes nothing.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    stamp = folder / "stamp"
    wanted = f"{sys.version}\n{torch}\n"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        _pip(folder, "install", torch)
        stamp.write_text(wanted)
    elif any(folder.glob("lib/python*/site-packages/tbe_aot-*")):
        _pip(folder, "uninstall", "--yes", "tbe-aot")
    _pip(folder, "install", str(wheel))


def run(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment in the project's folder, its output and errors captured together as text.

    Args:
        folder: the environment.
        command: the program's name in the venv's ``bin`` and its arguments.
    """
    return subprocess.run(
        [folder / "bin" / command[0], *command[1:]],
        cwd=_NO_TRITON.parents[1],
        env=variables(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def variables(folder: Path) -> dict[str, str]:
    """All environment variables that a command in the environment gets."""
    kept = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "TERM", "COLUMNS")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "CUDA_DISABLE_PTX_JIT": "1",
        "HOME": str(folder / "home"),
        "LANG": "C.UTF-8",
        "PATH": str(folder / "bin"),
        "PYTHONPATH": str(_NO_TRITON),
        # torch says so at import; nothing here converts to NumPy.
        "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",
        "VIRTUAL_ENV": str(folder),
    }


def _pip(folder: Path, verb: str, *arguments: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--root-user-action=ignore"]
    python = folder / "bin" / "python"
    # What PYTHONPATH shows is not installed here, and pip would take it for that.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-m", "pip", verb, *quiet, *arguments], env=environment, check=True)


def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--torch", default="torch", help="pip's requirement for torch")
    # argparse would give the command the options that stand before it.
    own, command = sys.argv[1:], []
    if "--" in own:
        split = own.index("--")
        own, command = own[:split], own[split + 1 :]
    options = parser.parse_args(own)
    folder = options.folder.absolute()
    make(folder, options.wheel.absolute(), options.torch)
    if command:
        os.execve(folder / "bin" / command[0], command, variables(folder))  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    _main()
