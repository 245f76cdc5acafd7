"""The command ``tbe-aot``: what an installation holds."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from . import __version__
from .inspection import build_info, read_manifest

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What an installation holds.")


@app.command()
def info() -> None:
    """Show the build: identity, profile, and per arch the kernels it holds."""
    build = build_info()
    console = Console()
    console.print(f"tbe-aot {__version__}", highlight=False)
    console.print(f"build {build.build_id[:16]}, profile {build.profile}", highlight=False)
    console.print(f"kernels {', '.join(build.kernels)}", highlight=False)
    table = Table("arch", "variants", "cubins", "pack MiB")
    for arch in build.archs:
        table.add_row(
            arch.name, str(arch.variants), str(arch.cubins), f"{arch.pack_bytes / 2**20:.2f}"
        )
    console.print(table)


@app.command(name="list")
def list_variants(
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    arch: Annotated[str, typer.Option(help="Only this arch.")] = "",
) -> None:
    """List the variants that this build holds, one a line: arch and name."""
    manifest = read_manifest()
    for option, value, known in (
        ("--kernel", kernel, manifest["kernels"]),
        ("--arch", arch, manifest["archs"]),
    ):
        if value and value not in known:
            raise typer.BadParameter(
                f"{value!r} is not in this build, which holds {', '.join(sorted(known))}",
                param_hint=option,
            )
    for name, entry in sorted(manifest["kernels"].items()):
        for variant in entry["variants"]:
            wanted = variant["built"] and kernel in {"", name} and arch in {"", variant["arch"]}
            if wanted:
                typer.echo(f"{variant['arch']} {variant['name']}")


def main() -> None:
    """Run the command."""
    app()
