"""The command line: ``python -m aot_build build | native | plan | check | compare``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import summary
from .archs import ARCHS
from .build import build as run_build
from .checksums import check_artifacts
from .checksums import compare as compare_folders
from .errors import BuildError
from .native import build as build_native
from .native import installed_torch
from .planner import make_plan

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

Specs = Annotated[Path, typer.Option(help="Folder of kernel specs.")]
Profile = Annotated[
    str, typer.Option(envvar="TBE_AOT_PROFILE", help="Which variants are built: full, ci, ...")
]
Archs = Annotated[
    str, typer.Option(envvar="TBE_AOT_ARCHS", help="Archs to build for, separated by commas.")
]
DEFAULT_SPECS = Path("kernel_specs")
DEFAULT_ARCHS = ",".join(ARCHS)
WIDTH_OF_LOGS = 160


def _console() -> Console:
    """Standard output; wide enough for variant names where nobody's terminal sets the width."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_OF_LOGS)
    return console


def _split(archs: str) -> list[str]:
    return [arch.strip() for arch in archs.split(",") if arch.strip()]


@app.command()
def build(
    specs: Specs = DEFAULT_SPECS,
    profile: Profile = "full",
    archs: Archs = DEFAULT_ARCHS,
    out: Annotated[
        Path | None, typer.Option(help="Artifact folder; build/artifacts/<profile> if not given.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(envvar="TBE_AOT_JOBS", min=1, help="Processes at a time.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(envvar="TBE_AOT_CACHE", help="Folder of the cubin cache.")
    ] = None,
) -> None:
    """Compile kernels, pack them and generate the launcher's tables."""
    folder = out or Path("build") / "artifacts" / profile
    result = run_build(
        specs, profile, _split(archs), folder, cache=cache, jobs=jobs, console=Console(stderr=True)
    )
    summary.print_build(result, _console())


@app.command()
def native(
    artifacts: Annotated[Path, typer.Option(help="Artifact folder of a finished build.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of objects and results; build/native/<artifacts> if not given."),
    ] = None,
    torch: Annotated[
        Path | None,
        typer.Option(
            envvar="TBE_AOT_TORCH",
            help="Torch package to build against; the installed one if not given.",
        ),
    ] = None,
    python: Annotated[
        Path | None, typer.Option(help="Interpreter that _launcher is for; this one if not given.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(envvar="TBE_AOT_JOBS", min=1, help="Compilations at a time.")
    ] = None,
) -> None:
    """Compile libtbe_aot.so and the module _launcher, and put the packs beside them."""
    folder = out or Path("build") / "native" / artifacts.name
    built = build_native(artifacts, folder, torch or installed_torch(), python, jobs)
    _console().print(f"{built.module}\n{built.library}", soft_wrap=True)


@app.command()
def plan(
    specs: Specs = DEFAULT_SPECS,
    profile: Profile = "full",
    archs: Archs = DEFAULT_ARCHS,
    kernel: Annotated[str, typer.Option(help="List the variants of this kernel.")] = "",
) -> None:
    """Check the specs and show what would be built."""
    planned = make_plan(specs, profile, _split(archs))
    if kernel:
        summary.print_kernel(planned, kernel, _console())
    else:
        summary.print_plan(planned, _console())


@app.command()
def check(folder: Annotated[Path, typer.Argument(help="Artifact folder.")]) -> None:
    """Verify a finished build: every file, pack and cubin against its hash."""
    checked = check_artifacts(folder)
    _console().print(
        f"{folder}: {checked.files} files, {checked.variants} variants in {checked.cubins} cubins, "
        f"profile {checked.profile}, {', '.join(checked.archs)}, build {checked.build_id[:16]}: intact"
    )


@app.command()
def compare(
    left: Annotated[Path, typer.Argument(help="Artifact folder.")],
    right: Annotated[Path, typer.Argument(help="Artifact folder.")],
) -> None:
    """Compare two finished builds byte by byte."""
    differing = compare_folders(left, right)
    if differing:
        raise BuildError("\n".join(f"differs: {name}" for name in differing))
    _console().print("identical")


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def main() -> None:
    """Run a command and exit; a person's mistake is a message, not a traceback."""
    # Asked to end, a build stops its compilers too, as when it is interrupted.
    signal.signal(signal.SIGTERM, _end)
    try:
        app()
    except (BuildError, OSError) as error:
        for line in str(error).splitlines():
            text = line if line.startswith(" ") else f"error: {line}"
            # Messages hold brackets, which are no markup.
            print(text, file=sys.stderr)  # noqa: T201 - a command prints
        sys.exit(1)


if __name__ == "__main__":
    main()
