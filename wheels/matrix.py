"""Build the wheels of several Pythons through cibuildwheel, from one folder of finished kernels.

    python wheels/matrix.py SDIST ARTIFACTS FOLDER [--torch REQUIREMENT] [cp311 cp312 ...]

cibuildwheel mounts the machine at /host in its container; what the build takes from outside is named there.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_HOST = "/host"


def environment(artifacts: Path, torch: Path, constraint: Path | None) -> dict[str, str]:
    """The variables of cibuildwheel.toml's ``environment-pass``, as seen from inside the container."""
    variables = {
        "TBE_AOT_ARTIFACTS": f"{_HOST}{artifacts.absolute()}",
        "TBE_AOT_TORCH": f"{_HOST}{torch.absolute()}",
    }
    if constraint:
        variables["PIP_CONSTRAINT"] = f"{_HOST}{constraint.absolute()}"
    if links := os.environ.get("PIP_FIND_LINKS"):
        # Folders of this machine; anything else is an address and stays as it is.
        places = (f"{_HOST}{place}" if Path(place).is_dir() else place for place in links.split())
        variables["PIP_FIND_LINKS"] = " ".join(places)
    return variables


def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sdist", type=Path)
    parser.add_argument("artifacts", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--torch", help="pip's requirement for the torch that wheels are tested with"
    )
    parser.add_argument("pythons", nargs="*", help="cp311 cp312 ...; default: all of the matrix")
    options = parser.parse_intermixed_args()

    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        raise SystemExit(f"{sys.executable} has no torch, whose headers the build needs")
    with tempfile.TemporaryDirectory() as folder:
        constraint = None
        if options.torch:
            constraint = Path(folder, "constraints.txt")
            constraint.write_text(f"{options.torch}\n")
        variables = environment(options.artifacts, Path(torch.origin).parent, constraint)
        if options.pythons:
            variables["CIBW_BUILD"] = " ".join(f"{p}-manylinux_x86_64" for p in options.pythons)
        command = [sys.executable, "-m", "cibuildwheel", "--platform", "linux"]
        command += ["--config-file", "{package}/wheels/cibuildwheel.toml"]
        command += ["--output-dir", str(options.folder), str(options.sdist)]
        raise SystemExit(
            subprocess.run(command, env=os.environ | variables, check=False).returncode
        )


if __name__ == "__main__":
    _main()
