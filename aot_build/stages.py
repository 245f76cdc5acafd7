"""The stages as commands, for ninja: ``python -m aot_build.stages <stage> --option value ... inputs``.

Problems are printed as blocks that start with "error: ", which the build picks out of ninja's output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import BuildError

PROGRESS_VARIABLE = "AOT_BUILD_PROGRESS"
ERROR_PREFIX = "error: "


# Each stage imports what it needs: a process that finds everything in the cache should cost little.
def _compile(arguments: argparse.Namespace) -> None:
    from .cache import CubinCache
    from .compile import compile_batch
    from .jobs import Batch
    from .progress_log import ProgressLog

    progress = os.environ.get(PROGRESS_VARIABLE)
    (batch,) = arguments.inputs
    compile_batch(
        Batch.read(batch),
        arguments.specs,
        CubinCache(arguments.cache),
        arguments.out,
        ProgressLog(Path(progress) if progress else None),
    )


def _pack(arguments: argparse.Namespace) -> None:
    from .cache import CubinCache
    from .pack import pack_arch
    from .plan import Plan

    pack_arch(
        Plan.read(arguments.plan),
        str(arguments.arch),
        arguments.inputs,
        CubinCache(arguments.cache),
        arguments.out,
        arguments.report,
    )


def _manifest(arguments: argparse.Namespace) -> None:
    from .manifest import write_manifest
    from .pack import read_reports
    from .plan import Plan

    write_manifest(Plan.read(arguments.plan), read_reports(arguments.inputs), arguments.out)


def _emit(arguments: argparse.Namespace) -> None:
    from .emit import emit
    from .pack import read_reports
    from .plan import Plan

    build_id = json.loads(arguments.manifest.read_bytes())["build_id"]
    emit(Plan.read(arguments.plan), read_reports(arguments.inputs), build_id, arguments.out)


def _operators(arguments: argparse.Namespace) -> None:
    from .files import readable_json, sha256_hex, write_if_changed
    from .operators import emit

    with tempfile.TemporaryDirectory(prefix="aot_build-operators-") as folder:
        emit(arguments.specs, Path(folder))
        written = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    for name, data in written.items():
        write_if_changed(arguments.out / name, data)
    hashes = {name: sha256_hex(data) for name, data in written.items()}
    write_if_changed(arguments.stamp, readable_json(hashes))


def _seal(arguments: argparse.Namespace) -> None:
    from .checksums import seal

    seal(arguments.folder)


@dataclass(frozen=True)
class Stage:
    """A stage's function and the options that it needs."""

    run: Callable[[argparse.Namespace], None]
    options: tuple[str, ...]


STAGES = {
    "compile": Stage(_compile, ("specs", "cache", "out")),
    "pack": Stage(_pack, ("plan", "arch", "cache", "out", "report")),
    "manifest": Stage(_manifest, ("plan", "out")),
    "emit": Stage(_emit, ("plan", "manifest", "out")),
    "operators": Stage(_operators, ("specs", "out", "stamp")),
    "seal": Stage(_seal, ("folder",)),
}


def main(arguments: Sequence[str]) -> int:
    """Run one stage; 1 and a list of errors when it cannot be done."""
    stage = STAGES[arguments[0]]
    parser = argparse.ArgumentParser(prog=f"aot_build.stages {arguments[0]}")
    for option in stage.options:
        parser.add_argument(f"--{option}", type=Path, required=True)
    parser.add_argument("inputs", nargs="*", type=Path)
    try:
        stage.run(parser.parse_args(arguments[1:]))
    except (BuildError, OSError) as error:
        for line in str(error).splitlines():
            print(line if line.startswith(" ") else f"{ERROR_PREFIX}{line}", file=sys.stderr)  # noqa: T201 - a command prints
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
