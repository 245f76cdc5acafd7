"""What a build holds, as tables: read from the manifest in an artifact folder or beside an installed library.

python wheels/report.py FOLDER [WHEEL]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

MIB = 2**20


def read(folder: Path) -> dict[str, Any]:
    """The manifest in an artifact folder or in an installed package's ``lib``."""
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return manifest


def console() -> Console:
    """A console that is wide enough for variants' names where the output is no terminal."""
    shown = Console()
    return shown if shown.is_terminal else Console(width=140)


def built_variants(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every variant with a cubin, of every kernel and arch."""
    for kernel in manifest["kernels"].values():
        yield from (variant for variant in kernel["variants"] if variant["built"])


def built_table(manifest: dict[str, Any]) -> Table:
    """One row per arch: variants, unique cubins and sizes."""
    title = f"Profile {manifest['profile']}, build {manifest['build_id'][:12]}"
    table = _table(title, "arch", "variants", "unique cubins", "cubins MiB", "pack MiB", left=1)
    for name, arch in sorted(manifest["archs"].items()):
        variants = [variant for variant in built_variants(manifest) if variant["arch"] == name]
        table.add_row(
            name,
            str(len(variants)),
            str(arch["blob_count"]),
            f"{sum(variant['cubin_bytes'] for variant in variants) / MIB:.2f}",
            f"{arch['file_size'] / MIB:.2f}",
        )
    return table


def largest_table(manifest: dict[str, Any], count: int | None = None) -> Table:
    """The variants with the most registers first; all of them without ``count``."""
    columns = ("registers", "spilled", "stack", "shared", "warps", "loads by bytes", "KiB")
    title = f"The {count} variants with the most registers" if count else "Variants by registers"
    table = _table(title, "variant", "arch", *columns, left=2)
    variants = sorted(
        built_variants(manifest), key=lambda v: (-v["registers"], v["name"], v["arch"])
    )
    for variant in variants[:count]:
        loads = variant["sass"]["global_load_bytes"]
        table.add_row(
            variant["name"],
            variant["arch"],
            *(
                str(variant[key])
                for key in ("registers", "spill_bytes", "stack_bytes", "shared_bytes", "num_warps")
            ),
            " ".join(f"{width}:{loads[width]}" for width in sorted(loads, key=int, reverse=True)),
            f"{variant['cubin_bytes'] / 1024:.1f}",
        )
    return table


def _table(title: str, *columns: str, left: int) -> Table:
    table = Table(title=title)
    for position, column in enumerate(columns):
        justify: Literal["left", "right"] = "left" if position < left else "right"
        table.add_column(column, justify=justify, overflow="fold")
    return table


def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a folder with a manifest.json")
    parser.add_argument("wheel", type=Path, nargs="?", help="a wheel whose size is shown too")
    options = parser.parse_args()
    manifest = read(options.folder)
    out = console()
    out.print(largest_table(manifest))
    out.print(built_table(manifest))
    if options.wheel:
        out.print(f"{options.wheel.name}: {options.wheel.stat().st_size / MIB:.2f} MiB")


if __name__ == "__main__":
    _main()
