"""The stages as commands, for ninja: ``python -m aot_build.stages <stage> ...``.

Problems are printed as blocks that start with "error: ", which the build picks out of ninja's output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .errors import BuildError

PROGRESS_VARIABLE = "AOT_BUILD_PROGRESS"
ERROR_PREFIX = "error: "


def _compile(arguments: argparse.Namespace) -> None:
    from .cache import CubinCache
    from .compile import compile_batch
    from .jobs import Batch
    from .progress import ProgressLog

    progress = os.environ.get(PROGRESS_VARIABLE)
    compile_batch(
        Batch.read(arguments.batch),
        arguments.specs,
        CubinCache(arguments.cache),
        arguments.results,
        ProgressLog(Path(progress) if progress else None),
    )


def _pack(arguments: argparse.Namespace) -> None:
    from .cache import CubinCache
    from .pack import pack_arch
    from .plan import Plan

    pack_arch(
        Plan.read(arguments.plan),
        arguments.arch,
        arguments.results,
        CubinCache(arguments.cache),
        arguments.out,
        arguments.report,
    )


def _manifest(arguments: argparse.Namespace) -> None:
    from .manifest import write_manifest
    from .pack import PackReport
    from .plan import Plan

    reports = [PackReport.read(path) for path in arguments.reports]
    write_manifest(
        Plan.read(arguments.plan), {report.arch: report for report in reports}, arguments.out
    )


def _emit(arguments: argparse.Namespace) -> None:
    from .emit import emit
    from .pack import PackReport
    from .plan import Plan

    reports = [PackReport.read(path) for path in arguments.reports]
    build_id = json.loads(arguments.manifest.read_bytes())["build_id"]
    emit(
        Plan.read(arguments.plan),
        {report.arch: report for report in reports},
        build_id,
        arguments.out,
    )


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aot_build.stages")
    stages = parser.add_subparsers(required=True)

    def stage(name: str, run: object, **options: object) -> None:
        command = stages.add_parser(name)
        command.set_defaults(run=run)
        for option, kind in options.items():
            many = option in {"results", "reports"} and name != "compile"
            command.add_argument(
                f"--{option}",
                type=kind,  # type: ignore[arg-type]
                required=not many,
                nargs="*" if many else None,
                default=[] if many else None,
            )

    stage("compile", _compile, batch=Path, specs=Path, cache=Path, results=Path)
    stage("pack", _pack, plan=Path, arch=str, cache=Path, out=Path, report=Path, results=Path)
    stage("manifest", _manifest, plan=Path, out=Path, reports=Path)
    stage("emit", _emit, plan=Path, manifest=Path, out=Path, reports=Path)
    stage("operators", _operators, specs=Path, out=Path, stamp=Path)
    stage("seal", _seal, folder=Path)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one stage; 1 and a list of errors when it cannot be done."""
    parsed = _parser().parse_args(arguments)
    try:
        parsed.run(parsed)
    except BuildError as error:
        for line in str(error).splitlines():
            print(line if line.startswith(" ") else f"{ERROR_PREFIX}{line}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
